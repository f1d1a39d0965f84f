"""Function images for the played kubelet: what they start is a file of this machine, not of a layer."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from images.oci import Image, single_layer
from support.function_images import OBLIGING

_DIRECTORY = Path(tempfile.gettempdir()) / f"krm-runner-functions-{os.getuid()}"


def obliging(version: str = "one", *, mark: str = "") -> Image:
    """The function that does what its call asks for; `support.calls` has the other side."""
    script = OBLIGING.replace("#!/bin/sh\n", f"#!/bin/sh\nVERSION={version}\n")
    return _image(str(_executable("obliging", script)), mark=mark)


def shell(script: str) -> Image:
    """A function that is a script."""
    return _image("/bin/sh", "-c", script)


def copies() -> Image:
    """One that returns its input."""
    return _image("/bin/cat")


def absent() -> Image:
    """One whose entrypoint is not there."""
    return _image("/nowhere/function")


def no_entrypoint() -> Image:
    """One that starts nothing."""
    return Image((single_layer({"/nothing": ""}),))


def _image(*entrypoint: str, mark: str = "") -> Image:
    return Image((single_layer({"/nothing": mark}),), entrypoint=entrypoint)


def _executable(name: str, script: str) -> Path:
    """The file with this content, which all tests share."""
    key = hashlib.sha256(script.encode()).hexdigest()[:12]
    path = _DIRECTORY / f"{name}-{key}"
    if not path.exists():
        _DIRECTORY.mkdir(exist_ok=True)
        # Renamed into place: other workers may be about to execute it.
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(script)
        new.chmod(0o755)
        new.rename(path)
    return path

"""`krm-runner image`: what the runner sees when it looks at an image, or why it cannot."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

from krm_runner.app.images import Images, open_images
from krm_runner.cli.terminal import Terminal
from krm_runner.core.errors import ConfigurationError, EvaluationError
from krm_runner.core.verdict import printable
from krm_runner.registry.resolver import Resolution
from krm_runner.settings.go_flags import render_help
from krm_runner.settings.image import IMAGE_FLAGS, ImageSettings, parse_image_settings
from krm_runner.telemetry import logs

_HELP = """\
krm-runner image looks an image up the way the pod runtime does, and shows what it finds.

Usage: krm-runner image IMAGE [FLAGS]

It shows the image's full name, its digest, the platform that was chosen, the command that a function pod would run,
where the credentials came from (never the credentials), and how long the answer counts. No layer is pulled. Use the
flags that `krm-runner serve` is started with, in the same container: then what works here works there.

{flags}

Environment: DOCKER_CONFIG is the folder of docker's config.json, the default keychain (else ~/.docker); HTTPS_PROXY,
HTTP_PROXY and NO_PROXY as usual; SSL_CERT_FILE and SSL_CERT_DIR replace the system's CAs.

Examples:
  krm-runner image set-namespace:v0.4.1
  krm-runner image registry.example.com/team/fn:v1 --enable-private-registries \\
      --registry-auth-secret-path=/var/tmp/config-secret/.dockerconfigjson
  krm-runner image localhost:5000/fn:v1 --image-platform=linux/arm64 -o json
  krm-runner image registry.example.com/fn:v1 --log-level=3      # every request, to see where it goes wrong

Exit codes: 0 the image can be used, 1 it cannot, 2 the command makes no sense.
"""
_INTERRUPTED = 130


def image_command(argv: Sequence[str]) -> int:
    """Look an image up; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in argv):
        sys.stdout.write(_HELP.format(flags=render_help(IMAGE_FLAGS)))
        return 0
    terminal = Terminal()
    try:
        settings = parse_image_settings(argv)
        logs.configure(level=settings.log_level, log_format="text")
        return asyncio.run(_look_up(settings, terminal))
    except ConfigurationError as error:
        terminal.line(f"krm-runner image: {error}")
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


async def _look_up(settings: ImageSettings, terminal: Terminal) -> int:
    async with open_images(settings.registries, default_prefix=settings.default_image_prefix) as images:
        try:
            async with terminal.waiting(f'looking up "{settings.image}"'):
                resolution = await images.resolver.look_up(settings.reference, image=settings.image)
        except EvaluationError as error:
            await _show_failure(settings, images, error)
            return 1
        await _show(settings, images, resolution)
        return 0


async def _show(settings: ImageSettings, images: Images, resolution: Resolution) -> None:
    found = resolution.metadata
    facts: dict[str, object] = {
        "image": settings.reference.canonical,
        "digest": found.digest,
        "manifest": found.manifest_digest,
        "platform": str(found.platform or "not said by the image"),
        "entrypoint": list(found.entrypoint),
        "cmd": list(found.cmd),
        "command": list(found.command),
        "credentials": await _credentials(settings, images, resolution.source),
        "source": resolution.source,
        "cache": _cache_state(settings, resolution.source),
    }
    if settings.output == "json":
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    for name, value in facts.items():
        if name not in ("entrypoint", "cmd"):
            text = json.dumps(value) if isinstance(value, list) else str(value)
            sys.stdout.write(f"{name + ':':<13}{printable(text.encode())}\n")


async def _show_failure(settings: ImageSettings, images: Images, error: EvaluationError) -> None:
    credentials = await _credentials(settings, images, "registry")
    if settings.output == "json":
        facts = {
            "image": settings.reference.canonical,
            "credentials": credentials,
            "reason": error.reason,
            "error": str(error),
        }
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
        return
    sys.stdout.write(f"image:       {settings.reference.canonical}\ncredentials: {credentials}\n")
    sys.stderr.write(f"krm-runner image: {printable(str(error).encode())}\n")


async def _credentials(settings: ImageSettings, images: Images, source: str) -> str:
    """Which keychain was asked and what it had, in words."""
    if source == "image map":
        return "not needed"
    is_private = images.keychains.is_private(settings.reference)
    match = await images.keychains.find(settings.reference)
    found = match.source if match.credentials else f"none: {match.source}"
    return f"{found} ({'private registry' if is_private else 'default keychain'})"


def _cache_state(settings: ImageSettings, source: str) -> str:
    if source == "image map":
        return f"not asked: as long as {settings.registries.image_map} says so"
    if settings.reference.digest:
        return "kept for good: a digest does not move"
    return (
        f"kept for {settings.registries.tag_ttl:g}s, then the registry is asked whether the tag moved (--image-tag-ttl)"
    )

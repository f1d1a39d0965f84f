"""Images of functions: the catalog's on three kinds of roots, our own in Python, and ones that misbehave."""

from __future__ import annotations

from cluster.layout import cache_directory
from cluster.materials import CATALOG, ROOT, build_busybox
from cluster.progress import Progress
from images.oci import ARCHITECTURES, Content, Image, Layer, Link, own_architecture, single_layer
from support.python_root import INTERPRETER, PACKAGES, python_root

CATALOG_FUNCTIONS = {
    "set-namespace": "v0.4.5",
    "starlark": "v0.5.5",
    "apply-replacements": "v0.1.5",
    "apply-setters": "v0.2.2",
}
PYTHON_FUNCTIONS = ("set-namespace-v0.4.5", "set-labels", "set-annotations")
NONROOT = "65532"
_MACHINE_NUMBERS = {"amd64": 62, "arm64": 183}
_PEOPLE: dict[str, Content] = {
    "/etc/passwd": f"root:x:0:0::/root:/bin/sh\nnonroot:x:{NONROOT}:{NONROOT}::/home/nonroot:/sbin/nologin\n",
    "/etc/group": f"root:x:0:\nnonroot:x:{NONROOT}:\n",
}


OBLIGING = """#!/bin/sh
list=$(cat)
asked() { printf '%s\\n' "$list" | sed -n "s/^    $1: //p"; }
call=$(asked call) seconds=$(asked seconds) code=$(asked exit)
[ -z "$call" ] || echo "$call" >>"${TMPDIR:-/tmp}/calls"
began=$(date +%s)
[ -z "$seconds" ] || sleep "$seconds"
[ -z "$(asked memory)" ] || exec tail /dev/zero
[ -z "$(asked report)" ] || sed 's/^/did: /' "${TMPDIR:-/tmp}/calls" >&2
printf '%s\\n' "$list"
echo "pod=${HOSTNAME:-$(hostname)} version=$VERSION call=$call began=$began ended=$(date +%s)" >&2
exit "${code:-0}"
"""


def alpine() -> Layer:
    """A shell and its tools, linked with musl; no glibc."""
    directory = build_busybox(Progress())
    files: dict[str, Content] = {"/bin/busybox": directory / "busybox", **_PEOPLE}
    files |= {f"/lib/{path.name}": path for path in directory.glob("ld-musl-*")}
    files |= {f"/bin/{name}": Link("busybox") for name in (directory / "links").read_text().split()}
    return single_layer(files)


def distroless() -> Layer:
    """Users, and nothing that can be executed."""
    return single_layer({**_PEOPLE, "/home/nonroot/.profile": "", "/etc/nsswitch.conf": "hosts: files dns\n"})


def catalog(function: str, root: str) -> Image:
    """A function of the catalog on a root: alpine, distroless or scratch."""
    program = single_layer({"/usr/local/bin/function": CATALOG / f"{function}-{CATALOG_FUNCTIONS[function]}"})
    ground = {"alpine": (alpine,), "distroless": (distroless,), "scratch": ()}[root]
    layers = (*(make() for make in ground), program)
    return Image(layers, entrypoint=("function",), user=NONROOT if root == "distroless" else None)


def python(function: str) -> Image:
    """One of our own functions."""
    library = ROOT / "src" / "krm_function"
    files: dict[str, Content] = {f"{PACKAGES}/krm_function/{path.name}": path for path in library.glob("*.py")}
    files[f"/functions/{function}"] = ROOT / "functions" / function
    return Image(
        (python_root(cache_directory() / "layers"), single_layer(files)),
        entrypoint=(INTERPRETER, f"/functions/{function}"),
        environment=("PATH=/usr/local/bin:/usr/bin:/bin", f"PYTHONPATH={PACKAGES}"),
        user=NONROOT,
    )


def shell(script: str) -> Image:
    """A function that is a script."""
    return Image((alpine(),), entrypoint=("/bin/sh", "-c", script))


def obliging(version: str = "one", *, mark: str = "") -> Image:
    """A function that does what its call asks for, and says in its log which pod did it, and when.

    `support.calls` has the other side. With a mark of its own it is an image that no node has yet.
    """
    function = single_layer({"/function": OBLIGING})
    environment = ("PATH=/usr/local/bin:/usr/bin:/bin", f"VERSION={version}")
    labels = (("mark", mark),) if mark else ()
    return Image((alpine(), function), entrypoint=("/function",), environment=environment, labels=labels)


def crashes() -> Image:
    return shell("echo cannot start >&2; exit 3")


def sleeps() -> Image:
    return shell("exec sleep 3600")


def eats_memory() -> Image:
    return shell("exec tail /dev/zero")


def no_entrypoint() -> Image:
    return Image((alpine(),))


def command_only() -> Image:
    return Image((alpine(),), command=("cat",))


def entrypoint_and_command() -> Image:
    return Image((alpine(),), entrypoint=("/bin/sh", "-c"), command=("cat",))


def wrong_architecture() -> Image:
    """For another processor, by its own words and as far as the kernel looks at its program."""
    program = bytearray((build_busybox(Progress()) / "busybox").read_bytes())
    program[18:20] = _MACHINE_NUMBERS[_foreign_architecture()].to_bytes(2, "little")
    layer = single_layer({"/usr/local/bin/function": bytes(program)})
    return Image((layer,), entrypoint=("function",), architecture=_foreign_architecture())


def _foreign_architecture() -> str:
    return next(name for name in ARCHITECTURES.values() if name != own_architecture())

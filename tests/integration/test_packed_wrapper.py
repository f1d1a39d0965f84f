"""The packed wrapper server: whole and in parts, where nothing else is, and where memory must not be executed."""

from __future__ import annotations

import base64
import ctypes
import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from integration.test_wrapper_in_any_image import IMAGE, LIST, copy_program, entered
from krm_runner.core.wrapper_config_maps import PART_BYTES, parts_of
from support.client import Client
from support.machine import ROOT, missing
from support.wrapper import WRAPPER, WrapperProcess, packed_wrapper

__all__ = ["copy_program"]

_MEMFD_CREATE = {"x86_64": 319, "aarch64": 279}


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A volume as the kubelet makes it of ConfigMaps: links to links to files."""
    root = tmp_path / "root"
    content = root / "tools" / "..2026"
    content.mkdir(parents=True)
    put_parts(content)
    (root / "tools" / "..data").symlink_to("..2026")
    for part in content.iterdir():
        (root / "tools" / part.name).symlink_to(f"..data/{part.name}")
    return root / "tools"


def put_parts(directory: Path) -> None:
    for part in parts_of(packed_wrapper().read_bytes(), source="it"):
        path = directory / part.key
        path.write_bytes(base64.b64decode(part.encoded))
        path.chmod(0o555)


@pytest.fixture
def empty_root(tools: Path, copy_program: Path) -> Path:
    """Nothing but the volume, the function, and where to mount things."""
    if os.geteuid() != 0:
        missing("not root: cannot change the root")
    root = tools.parent
    for name in ("dev", "proc", "bin", "tmp"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    shutil.copy(copy_program, root / "bin" / "function")
    return root


async def check(wrapper: WrapperProcess) -> None:
    async with Client(wrapper.address) as client:
        answer = await client.evaluate(IMAGE, LIST)
        assert (answer.code, answer.resource_list) == ("OK", LIST)


def no_memory_files(command: Iterable[str]) -> list[str]:
    """The command where memfd_create is refused, as with vm.memfd_noexec=2."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from integration.test_packed_wrapper import forbid_memory_files; import os; "
        "forbid_memory_files(); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", script, str(ROOT / "tests"), *command]


def forbid_memory_files() -> None:
    """From here on, for this process and those that it becomes, by a seccomp filter."""
    load, equal, answer = 0x20, 0x15, 0x06
    refused, allowed = 0x0005_0000 | 13, 0x7FFF_0000
    number = _MEMFD_CREATE[platform.machine()]
    program = b"".join(
        struct.pack("HBBI", *each)
        for each in ((load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, refused), (answer, 0, 0, allowed))
    )
    library = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program)
    filter_program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer))
    no_new_privileges, seccomp, with_filter = 38, 22, 2
    assert library.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert library.prctl(seccomp, with_filter, ctypes.c_char_p(filter_program), 0, 0) == 0, ctypes.get_errno()


def test_it_is_split_for_config_maps_and_needs_few() -> None:
    packed = packed_wrapper()
    parts = parts_of(packed.read_bytes(), source="it")
    assert len(parts) == 2, "one more is one more to fetch for every pod"
    assert max(len(part.encoded) * 3 / 4 for part in parts) <= PART_BYTES


def test_two_runs_pack_the_same() -> None:
    before = packed_wrapper().read_bytes()
    subprocess.run([sys.executable, ROOT / "wrapper" / "pack.py", packed_wrapper().parent], check=True, timeout=60)
    assert packed_wrapper().read_bytes() == before


@pytest.mark.parametrize("proc", [False, True], ids=["without-proc", "with-proc"])
async def test_it_serves_in_an_empty_read_only_root(empty_root: Path, proc: bool) -> None:
    prefix = entered(empty_root, proc=proc)
    with WrapperProcess("--", "function", prefix=prefix, program="/tools/wrapper-server") as wrapper:
        await check(wrapper)
        assert wrapper.stop() == 0
    assert list((empty_root / "tmp").iterdir()) == []


async def test_a_file_takes_the_place_of_memory_and_is_gone_when_it_runs(empty_root: Path) -> None:
    prefix = no_memory_files(entered(empty_root, mode="rw"))
    # Of a container that ended in between.
    (empty_root / "tmp" / ".wrapper-server").write_text("left behind")
    os.chown(empty_root / "tmp" / ".wrapper-server", 65532, 65532)
    with WrapperProcess("--", "function", prefix=prefix, program="/tools/wrapper-server") as wrapper:
        await check(wrapper)
        assert list((empty_root / "tmp").iterdir()) == []
        assert wrapper.stop() == 0


def test_where_neither_is_possible_it_says_so(empty_root: Path) -> None:
    command = no_memory_files([*entered(empty_root), "/tools/wrapper-server", "--help"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 126
    assert done.stderr == (
        "wrapper-server: it cannot be executed from memory (error 13), nor from a file in /tmp (error 30): the pod "
        "needs a /tmp that it may write to and execute from, or its node vm.memfd_noexec below 2\n"
    )


async def test_the_server_is_the_same_process_with_nothing_more_open(tools: Path, copy_program: Path) -> None:
    program = str(tools / "wrapper-server")
    with WrapperProcess("--", str(copy_program), program=program, environment={"MARK": "here"}) as wrapper:
        await check(wrapper)
        here = Path(f"/proc/{wrapper.process.pid}")
        assert os.readlink(here / "exe") == "/memfd:wrapper-server (deleted)"
        arguments = (here / "cmdline").read_bytes().split(b"\0")[:-1]
        assert arguments == [os.fsencode(each) for each in (program, f"--port={wrapper.port}", "--", copy_program)]
        assert b"MARK=here" in (here / "environ").read_bytes().split(b"\0")
        opened = [os.readlink(each) for each in (here / "fd").iterdir()]
        assert not [each for each in opened if each.startswith((str(tools), "/memfd"))]


def test_whole_it_is_a_program_too(tmp_path: Path) -> None:
    program = tmp_path / "wrapper-server"
    shutil.copy(packed_wrapper(), program)
    plain, packed = (
        subprocess.run([each, "--help"], capture_output=True, text=True, timeout=30, check=False)
        for each in (WRAPPER, program)
    )
    assert packed.returncode == 0
    assert packed.stdout == plain.stdout


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("missing", "wrapper-server: a part of it is missing: {tools}/wrapper-server.1\n"),
        ("empty", "wrapper-server: a part of it is missing: {tools}/wrapper-server.1\n"),
        ("damaged", "wrapper-server: what is packed here is broken\n"),
        ("loader", "wrapper-server: nothing is packed here: this is the loader alone\n"),
    ],
)
def test_what_is_not_whole_is_not_executed(tools: Path, harm: str, said: str) -> None:
    second = tools / "..2026" / "wrapper-server.1"
    second.chmod(0o755)
    match harm:
        case "missing":
            second.unlink()
        case "empty":
            second.write_bytes(b"")
        case "damaged":
            second.write_bytes(bytes(second.stat().st_size))
        case _:
            (tools / "..2026" / "wrapper-server").chmod(0o755)
            shutil.copy(WRAPPER.with_name("wrapper-server-loader"), tools / "..2026" / "wrapper-server")
    done = subprocess.run([tools / "wrapper-server"], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (126, said.format(tools=tools))

"""The wrapper server where nothing else is: an empty root, read-only, no /proc, no /tmp, a user without a name.

And the other programs that it is by name, `grpc-health-probe` and `cp`, which must work there too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path

import grpc
import pytest

from krm_runner.rpc.health import Health
from support.client import Client
from support.machine import ROOT, missing
from support.runner import write_function
from support.server import free_port
from support.wrapper import WrapperProcess

IMAGE = "example.com/some/function:v1"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
NOBODY = 65532

# In a mount namespace of its own: /dev, /proc if wanted, everything read-only if wanted, then the new root.
ENTER = """
set -eu
root=$1 proc=$2 mode=$3; shift 3
mount --make-rprivate /
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
[ "$proc" = no ] || mount --bind /proc "$root/proc"
[ "$mode" = rw ] || mount -o remount,bind,ro "$root"
chroot=$(command -v chroot)
exec env -i "$chroot" --userspec=65532:65532 "$root" "$@"
"""


@pytest.fixture(scope="session")
def copy_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A function without any needs: copies stdin to stdout, linked statically."""
    if shutil.which("cc") is None:
        missing("no C compiler: cannot build a static function")
    program = tmp_path_factory.mktemp("copy") / "copy"
    subprocess.run(["cc", "-static", "-O2", "-o", program, ROOT / "bench" / "copy.c"], check=True, timeout=120)
    return program


@pytest.fixture
def empty_root(tmp_path: Path, wrapper_server: Path, copy_program: Path) -> Path:
    """Nothing but the wrapper's files, the function, and where to mount things."""
    if os.geteuid() != 0:
        missing("not root: cannot change the root")
    root = tmp_path / "root"
    for name in ("dev", "proc", "bin", "wrapper-server", "tools"):
        (root / name).mkdir(parents=True)
    shutil.copy(wrapper_server, root / "wrapper-server" / "wrapper-server")
    (root / "wrapper-server" / "grpc-health-probe").symlink_to("wrapper-server")
    (root / "bin" / "cp").symlink_to("/wrapper-server/wrapper-server")
    shutil.copy(copy_program, root / "bin" / "function")
    (root / "tools").chmod(0o777)
    return root


def entered(root: Path, *, proc: bool = False, mode: str = "ro") -> list[str]:
    return ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(root), "yes" if proc else "no", mode]


@pytest.mark.parametrize("proc", [False, True], ids=["without-proc", "with-proc"])
@pytest.mark.parametrize("command", ["/bin/function", "function"])
async def test_it_serves_in_an_empty_read_only_root(empty_root: Path, proc: bool, command: str) -> None:
    prefix = entered(empty_root, proc=proc)
    program = "/wrapper-server/wrapper-server"
    with WrapperProcess("--", command, prefix=prefix, program=program) as wrapper:
        async with Client(wrapper.address) as client:
            answer = await client.evaluate(IMAGE, LIST)
            assert (answer.code, answer.resource_list) == ("OK", LIST)
            large = LIST + b"# " + b"x" * 3_000_000 + b"\n"
            assert (await client.evaluate(IMAGE, large)).resource_list == large
            # In standby as well; the end of the last call may not have led to the next start yet.
            while not any(" process=standby " in line for line in wrapper.lines):
                async with asyncio.timeout(20):
                    assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        probe = subprocess.run(
            [*prefix, "/wrapper-server/grpc-health-probe", "-addr", f"localhost:{wrapper.port}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (probe.returncode, probe.stderr) == (0, "status: SERVING\n")
        assert wrapper.stop() == 0


def test_the_init_container_copies_it_into_a_volume(empty_root: Path) -> None:
    subprocess.run(
        [*entered(empty_root, mode="rw"), "/bin/cp", "-a", "/wrapper-server/.", "/tools"], check=True, timeout=30
    )
    tools = empty_root / "tools"
    assert (tools / "grpc-health-probe").readlink() == Path("wrapper-server")
    copied, original = (tools / "wrapper-server").stat(), (empty_root / "wrapper-server" / "wrapper-server").stat()
    assert (copied.st_size, copied.st_mode, copied.st_mtime_ns) == (
        original.st_size,
        original.st_mode,
        original.st_mtime_ns,
    )
    assert copied.st_uid == NOBODY, "the owner cannot be kept, and that is no error"
    # Once more, onto what is there: a container may be started again.
    subprocess.run(
        [*entered(empty_root, mode="rw"), "/bin/cp", "-a", "/wrapper-server/.", "/tools"], check=True, timeout=30
    )
    assert sorted(path.name for path in tools.iterdir()) == ["grpc-health-probe", "wrapper-server"]


def test_a_volume_that_belongs_to_root_is_written_all_the_same(empty_root: Path) -> None:
    """Its group may write; owner, mode and times of the directory itself cannot be set."""
    tools = empty_root / "tools"
    os.chown(tools, 0, NOBODY)
    tools.chmod(0o2775)
    subprocess.run(
        [*entered(empty_root, mode="rw"), "/bin/cp", "-a", "/wrapper-server/.", "/tools"], check=True, timeout=30
    )
    assert os.access(tools / "wrapper-server", os.X_OK)


# --- cp -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cp(tmp_path: Path, wrapper_server: Path) -> Path:
    program = tmp_path / "bin" / "cp"
    program.parent.mkdir()
    program.symlink_to(wrapper_server)
    return program


def run(program: Path, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=30, check=False, cwd=cwd)


def test_plain_copies(tmp_path: Path, cp: Path) -> None:
    source = write_function(tmp_path / "from", "tool", "#!/bin/sh\n", 0o755)
    link = tmp_path / "from" / "link"
    link.symlink_to("tool")
    target = tmp_path / "to"
    target.mkdir()
    assert run(cp, source, target / "renamed").returncode == 0
    assert run(cp, source, link, target).returncode == 0
    assert {path.name: path.read_text() for path in target.iterdir()} == dict.fromkeys(
        ("renamed", "tool", "link"), "#!/bin/sh\n"
    )
    assert not (target / "link").is_symlink()
    assert os.access(target / "renamed", os.X_OK)


def test_directories_are_copied_with_everything_in_them(tmp_path: Path, cp: Path) -> None:
    write_function(tmp_path / "from" / "deep" / "deeper", "file", "x", 0o640)
    (tmp_path / "from" / "deep" / "link").symlink_to("/nonexistent")
    os.utime(tmp_path / "from" / "deep", (1, 2))
    assert run(cp, "-a", "from", "to", cwd=tmp_path).returncode == 0
    copied = tmp_path / "to" / "deep"
    assert (copied / "deeper" / "file").read_text() == "x"
    assert (copied / "deeper" / "file").stat().st_mode & 0o777 == 0o640
    assert (copied / "link").readlink() == Path("/nonexistent")
    assert copied.stat().st_mtime == 2
    assert run(cp, "-r", "from", "to", cwd=tmp_path).returncode == 0
    assert (tmp_path / "to" / "from" / "deep" / "deeper" / "file").exists(), "into a directory that exists"


def test_a_program_in_use_is_replaced(tmp_path: Path, cp: Path, copy_program: Path) -> None:
    shutil.copy(copy_program, tmp_path / "running")
    with subprocess.Popen([tmp_path / "running"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        assert run(cp, copy_program, tmp_path / "running").returncode == 0
        running.communicate(b"", timeout=10)
        assert running.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage: cp"),
        (["one"], "usage: cp"),
        (["nonexistent", "to"], "nonexistent: No such file"),
        (["directory", "to"], "-r is not given"),
        (["-a", "directory", "directory/inner"], "into itself"),
        (["file", "file", "to"], "to is not a directory"),
        (["--nonsense", "file", "to"], "unknown option --nonsense"),
        (["file", "nonexistent/to"], "nonexistent/to: No such file"),
    ],
)
def test_what_cannot_be_copied_is_one_line_and_exit_code_1(
    tmp_path: Path, cp: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("x")
    ended = run(cp, *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


# --- grpc-health-probe --------------------------------------------------------------------------------------------


@pytest.fixture
def probe(tmp_path: Path, wrapper_server: Path) -> Path:
    program = tmp_path / "grpc-health-probe"
    program.symlink_to(wrapper_server)
    return program


def test_the_probes_exit_codes_are_those_of_the_well_known_tool(tmp_path: Path, probe: Path) -> None:
    assert run(probe).returncode == 1
    assert run(probe, "-addr", "nonsense").returncode == 1
    assert run(probe, "-nonsense").returncode == 1
    assert run(probe, "-addr=localhost:1", "-connect-timeout=0s").returncode == 1
    nobody = run(probe, f"-addr=localhost:{free_port()}")
    assert nobody.returncode == 2
    assert "failed to connect service" in nobody.stderr
    with WrapperProcess("--", "cat", program=str(probe.resolve())) as wrapper:
        address = f"localhost:{wrapper.port}"
        for spelling in (
            ["-addr", address],
            [f"--addr={address}", "-rpc-timeout", "2s"],
            ["-addr", f"[::1]:{wrapper.port}"],
        ):
            served = run(probe, *spelling)
            assert (served.returncode, served.stderr) == (0, "status: SERVING\n")
        assert run(probe, "-addr", address, "-service", "evaluator.FunctionEvaluator").returncode == 0
        unknown = run(probe, "-addr", address, "-service", "unknown")
        assert unknown.returncode == 3
        assert "health rpc failed" in unknown.stderr


def test_a_server_that_shuts_down_is_unhealthy(tmp_path: Path, probe: Path) -> None:
    """Asked over a connection from before, as a probe of the kubelet is not; so by a server of the test's own."""

    async def ask() -> subprocess.CompletedProcess[str]:
        health = Health(["some.Service"])
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((health.handler(),))
        port = server.add_insecure_port("localhost:0")
        await server.start()
        try:
            return await asyncio.to_thread(run, probe, "-addr", f"localhost:{port}")
        finally:
            await server.stop(None)

    ended = asyncio.run(ask())
    assert (ended.returncode, ended.stderr) == (4, 'service unhealthy (responded with "NOT_SERVING")\n')


def test_a_server_that_does_not_answer_is_given_up(probe: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        ended = run(probe, "-addr", f"127.0.0.1:{port}", "-rpc-timeout=300ms")
    assert ended.returncode == 3
    assert "did not complete within" in ended.stderr

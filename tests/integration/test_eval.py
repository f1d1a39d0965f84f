"""`krm-runner eval` as its users run it: on a folder, by stdin, with a runner, interrupted, on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from integration.conftest import Installation
from support.processes import command_lines
from support.runner import RunnerProcess

ROOT = Path(__file__).parent.parent.parent
SHOP = ROOT / "examples" / "shop"
EMBEDDED = (f"--functions={ROOT / 'functions'}", f"--config={ROOT / 'config.yaml'}")


def command(*argv: str | Path) -> list[str]:
    return [sys.executable, "-m", "krm_runner", "eval", *map(str, argv)]


def evaluate(*argv: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*argv),
        input=stdin,
        capture_output=True,
        timeout=120,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHOP, tmp_path / "shop"))


def test_a_package_is_changed_in_place_and_the_result_is_shown(shop: Path) -> None:
    done = evaluate(shop, "--image", "set-namespace:v0.4.1", *EMBEDDED, "namespace=staging")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = re.sub(r"in \d+\.\ds", "in 1.0s", done.stderr).splitlines()
    assert lines[:4] == [
        '[RUNNING] "set-namespace:v0.4.1"',
        '[PASS] "set-namespace:v0.4.1" in 1.0s',
        "  Results:",
        '    [info] namespace "","default" updated to "staging", 3 value(s) changed',
    ]
    assert lines[-3:] == ["  Changed 2 of 2 files:", "    rbac.yaml", "    web.yaml"]
    web, rbac = (SHOP / "web.yaml").read_text(), (SHOP / "rbac.yaml").read_text()
    assert (shop / "rbac.yaml").read_text() == rbac.replace("namespace: default #", "namespace: staging #")
    assert (shop / "web.yaml").read_text() == web.replace("namespace: default", "namespace: staging").replace(
        "name: web # kept as it is\n", "name: web # kept as it is\n  namespace: staging\n"
    )
    assert (shop / "Kptfile").read_text() == (SHOP / "Kptfile").read_text()
    before = state(shop)
    again = evaluate(shop, "-i", "set-namespace:v0.4.1", *EMBEDDED, "namespace=staging")
    assert (again.returncode, "No file changed of 2" in again.stderr) == (0, True)
    assert state(shop) == before, "a second run touches nothing"


def test_a_runner_gives_the_same_result(shop: Path, tmp_path: Path) -> None:
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    other = Path(shutil.copytree(SHOP, tmp_path / "other"))
    with RunnerProcess(*EMBEDDED, environment=environment) as runner:
        remote = evaluate(shop, "-i", "krm-runner/set-labels:v1", "--address", runner.address, "app=x", "tier=web")
    local = evaluate(other, "-i", "krm-runner/set-labels:v1", *EMBEDDED, "app=x", "tier=web")
    assert (remote.returncode, local.returncode) == (0, 0), remote.stderr + local.stderr
    assert {path: content for path, (content, _) in state(shop).items()} == {
        path: content for path, (content, _) in state(other).items()
    }
    assert "tier: web" in (shop / "web.yaml").read_text()


def test_a_list_on_stdin_goes_to_stdout(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "resource-list.yaml").read_bytes()
    done = evaluate("-", "-i", "set-namespace:v0.4.1", *EMBEDDED, stdin=text)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["items"][0]["metadata"]["namespace"] == "staging"
    other = evaluate("-", "-i", "set-namespace:v0.4.1", *EMBEDDED, "namespace=other", stdin=text)
    assert yaml.safe_load(other.stdout)["items"][0]["metadata"]["namespace"] == "other"
    assert "# the shop's front door" in other.stdout
    wrong = evaluate("-", "-i", "set-namespace:v0.4.1", *EMBEDDED, stdin=b"kind: Deployment\n")
    assert (wrong.returncode, "stdin is no ResourceList" in wrong.stderr) == (2, True)


def test_other_outputs_leave_the_package_alone(shop: Path, tmp_path: Path) -> None:
    before = state(shop)
    new = tmp_path / "new"
    arguments = (shop, "-i", "krm-runner/set-annotations:v1", *EMBEDDED, "owner=me")
    assert evaluate(*arguments, "-o", new).returncode == 0
    assert {path.name for path in new.iterdir()} == {"rbac.yaml", "web.yaml"}
    assert "owner: me" in (new / "rbac.yaml").read_text()
    taken = evaluate(*arguments, "-o", new)
    assert (taken.returncode, "is there already" in taken.stderr) == (2, True)
    listed = evaluate(*arguments, "--output=stdout")
    assert yaml.safe_load(listed.stdout)["kind"] == "ResourceList"
    documents = list(yaml.safe_load_all(evaluate(*arguments, "-o", "unwrap").stdout))
    assert [document["kind"] for document in documents] == ["ClusterRoleBinding", "Deployment", "Service"]
    assert state(shop) == before


def test_config_from_a_file_and_results_in_a_folder(shop: Path, tmp_path: Path) -> None:
    config = tmp_path / "labels.yaml"
    config.write_text("apiVersion: fn.kpt.dev/v1alpha1\nkind: SetLabels\nmetadata: {name: x}\nlabels: {team: a}\n")
    results = tmp_path / "results"
    done = evaluate(shop, "-i", "krm-runner/set-labels:v1", *EMBEDDED, "--fn-config", config, "--results-dir", results)
    assert done.returncode == 0, done.stderr
    saved = yaml.safe_load((results / "results.yaml").read_text())
    assert (saved["kind"], saved["exitCode"], saved["items"][0]["image"]) == (
        "FunctionResultList",
        0,
        "krm-runner/set-labels:v1",
    )
    assert saved["items"][0]["results"][0]["message"] == "set 6 labels in total"
    both = evaluate(shop, "-i", "krm-runner/set-labels:v1", *EMBEDDED, "--fn-config", config, "a=b")
    assert (both.returncode, "not both" in both.stderr) == (2, True)


@pytest.fixture
def own(tmp_path: Path) -> Installation:
    from contextlib import ExitStack

    (tmp_path / "own").mkdir()
    return Installation(tmp_path / "own", ExitStack(), front="off")


def test_a_function_that_fails_leaves_the_package_as_it_was(shop: Path, own: Installation, tmp_path: Path) -> None:
    image = own.add("fails", "#!/bin/sh\nsed s/web/wide/\necho 'out of ideas' >&2\nexit 3\n")
    before = state(shop)
    flags = (f"--functions={own.functions}", f"--config={own.config}", f"--results-dir={tmp_path / 'results'}")
    done = evaluate(shop, "-i", image, *flags)
    assert done.returncode == 1
    assert re.search(rf'^\[FAIL\] "{image}" in ', done.stderr, re.MULTILINE)
    assert "failed with exit code 3" in done.stderr
    assert "out of ideas" in done.stderr
    assert state(shop) == before
    saved = yaml.safe_load((tmp_path / "results" / "results.yaml").read_text())
    assert (saved["exitCode"], saved["items"][0]["exitCode"]) == (3, 3)


def test_results_of_a_function_that_fails_are_saved_as_it_wrote_them(
    shop: Path, own: Installation, tmp_path: Path
) -> None:
    result = {"message": "no owner", "severity": "error", "resourceRef": {"kind": "Service", "name": "web"}}
    script = f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps({'kind': 'ResourceList', 'results': [result]})}'\nexit 1\n"
    image = own.add("validates", script)
    flags = (f"--functions={own.functions}", f"--config={own.config}", f"--results-dir={tmp_path / 'results'}")
    assert evaluate(shop, "-i", image, *flags).returncode == 1
    saved = yaml.safe_load((tmp_path / "results" / "results.yaml").read_text())
    assert saved["items"][0]["results"] == [result]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (r'{"kind": "ResourceList", "results": [{"message": "\ud83d\ude00", "severity": "error"}]}', "\U0001f600"),
        ("kind: ResourceList\nitems: [{when: 2024-02-30, what: !Ref x}]\nresults: [{message: odd}]", "odd"),
    ],
    ids=["surrogates", "dates-and-tags"],
)
def test_results_are_saved_whatever_else_a_failed_function_writes(
    shop: Path, own: Installation, tmp_path: Path, output: str, message: str
) -> None:
    (tmp_path / "output").write_text(output)
    image = own.add("odd", f"#!/bin/sh\ncat >/dev/null\ncat {tmp_path}/output\nexit 1\n")
    flags = (f"--functions={own.functions}", f"--config={own.config}", f"--results-dir={tmp_path / 'results'}")
    assert evaluate(shop, "-i", image, *flags).returncode == 1
    saved = yaml.safe_load((tmp_path / "results" / "results.yaml").read_text())
    assert [each["message"] for each in saved["items"][0]["results"]] == [message]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_the_package_as_it_was(shop: Path, own: Installation, number: signal.Signals) -> None:
    seconds = f"70{number.value:02}"
    image = own.add("slow", f"#!/bin/sh\nsleep {seconds}\n")
    before = state(shop)
    process = subprocess.Popen(
        command(shop, "-i", image, f"--functions={own.functions}", f"--config={own.config}"),
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 30
    while f"sleep {seconds}" not in command_lines() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f'[FAIL] "{image}" interrupted; nothing was changed' in stderr
    assert f"sleep {seconds}" not in command_lines()
    assert state(shop) == before


def test_a_thousand_files_and_only_the_changed_ones_are_touched(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for number in range(1000):
        namespace = "old" if number % 100 == 0 else "new"
        (package / f"{number:03}.yaml").write_text(
            f"# {number}\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m{number}, namespace: {namespace}}}\n"
        )
    before = state(package)
    done = evaluate(package, "-i", "set-namespace:v0.4.1", *EMBEDDED, "namespace=new")
    assert done.returncode == 0, done.stderr
    assert "Changed 10 of 1000 files" in done.stderr
    after = state(package)
    assert {path for path in before if before[path] != after[path]} == {
        f"{number:03}.yaml" for number in range(0, 1000, 100)
    }
    assert after["100.yaml"][0] == before["100.yaml"][0].replace(b"namespace: old", b'namespace: "new"')


def test_new_and_removed_resources_become_new_and_removed_files(shop: Path, own: Installation) -> None:
    script = (
        f"#!{sys.executable}\n"
        + """
from krm_function import run
def function(package):
    for resource in package.items:
        if resource.kind == "ClusterRoleBinding":
            package.remove(resource)
    package.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
run(function)
"""
    )
    image = own.add("both", script)
    done = evaluate(shop, "-i", image, f"--functions={own.functions}", f"--config={own.config}")
    assert done.returncode == 0, done.stderr
    assert not (shop / "rbac.yaml").exists()
    assert (shop / "namespace_shop.yaml").read_text() == "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n"
    assert (shop / "web.yaml").read_text() == (SHOP / "web.yaml").read_text()


def test_a_package_that_cannot_be_written_stays_as_it_was(shop: Path, own: Installation) -> None:
    image = own.add("escape", "#!/bin/sh\nsed 's#io/path: web.yaml#io/path: ../web.yaml#'\n")
    before = state(shop)
    done = evaluate(shop, "-i", image, f"--functions={own.functions}", f"--config={own.config}")
    assert (done.returncode, "outside of the package" in done.stderr) == (2, True)
    assert state(shop) == before


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a package folder"),
        (["shop"], "name the function's image with --image"),
        (["shop", "--image", "A B"], '"A B" is no valid image'),
        (["shop", "--image", "x", "y"], 'unexpected argument "y"'),
        (["nowhere", "--image", "x"], "nowhere is not a folder"),
        (["shop", "--imago", "x"], "unknown flag --imago; did you mean --image?"),
        (["shop", "--image", "x", "--config=nowhere.yaml"], "cannot read nowhere.yaml"),
        (["shop", "--image", "x", "--fn-config=nowhere.yaml"], "cannot read nowhere.yaml"),
    ],
)
def test_wrong_commands_are_one_line_and_exit_code_2(tmp_path: Path, argv: list[str], message: str) -> None:
    (tmp_path / "shop").mkdir()
    done = subprocess.run(
        command(*argv),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_unknown_functions_and_absent_runners_are_explained(shop: Path) -> None:
    unknown = evaluate(shop, "-i", "no-such-function", *EMBEDDED)
    assert (unknown.returncode, "--address" in unknown.stderr) == (1, True)
    absent = evaluate(shop, "-i", "x", "--address", "localhost:1")
    assert (absent.returncode, "cannot reach a runner at localhost:1" in absent.stderr) == (1, True)


def test_a_terminal_shows_that_something_goes_on(shop: Path, own: Installation) -> None:
    image = own.add("slow", "#!/bin/sh\nsleep 0.8\nexec cat\n")
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        command(shop, "-i", image, f"--functions={own.functions}", f"--config={own.config}"),
        stderr=terminal,
        env=dict(os.environ) | {"TERM": "xterm"},
    )
    os.close(terminal)
    seen = b""
    while True:
        ready, _, _ = select.select([controller], [], [], 30)
        try:
            chunk = os.read(controller, 4096) if ready else b""
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(controller)
    assert process.wait(30) == 0
    text = seen.decode()
    assert len(re.findall(r'\r[|/\\-] running "[^"]*" 0\.\ds', text)) >= 3
    assert "\x1b[32m[PASS]\x1b[0m" in text
    assert text.endswith("No file changed of 2\r\n")

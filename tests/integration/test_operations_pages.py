"""The pages for operators say what the code does: every error, every metric, every right, every test that they name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from krm_runner.core import errors
from krm_runner.core.errors import EvaluationError, RemoteError
from krm_runner.core.pod_failure import failure
from krm_runner.core.rights import RIGHTS, Place
from krm_runner.rpc import status
from krm_runner.settings import SERVE_FLAGS
from krm_runner.settings.doctor import DOCTOR_FLAGS

ROOT = Path(__file__).parent.parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
THREATS = (ROOT / "docs" / "threat-model.md").read_text()
TELEMETRY = ROOT / "src" / "krm_runner" / "telemetry"


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next."""
    return re.split(r"^#{2,3} ", text.partition(f"# {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines[2:]]


def test_every_error_is_explained_with_its_code() -> None:
    explained = {row[0] for row in rows(section(OPERATIONS, "Errors"))}
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, EvaluationError)]
    assert explained == {f"{_reason(found)} ({_code(found)})" for found in classes}
    assert all(len(row) == 3 and row[1] and row[2] for row in rows(section(OPERATIONS, "Errors")))


def _reason(kind: type[EvaluationError]) -> str:
    return "REMOTE" if kind is RemoteError else kind.reason


def _code(kind: type[EvaluationError]) -> str:
    # The message does not matter, and constructors differ.
    error = kind.__new__(kind)
    if isinstance(error, RemoteError):
        error.code = ""
    return status.code_of(error).name


def test_retries_are_said_where_the_answer_carries_them() -> None:
    said = {row[0].split()[0] for row in rows(section(OPERATIONS, "Errors")) if "Retry." in row[1]}
    classes = [found for _, found in inspect.getmembers(errors, inspect.isclass) if issubclass(found, EvaluationError)]
    assert said == {found.reason for found in classes if found is not RemoteError and found.retry_after is not None}


def test_the_advice_for_pods_is_that_of_the_messages() -> None:
    found = rows(section(OPERATIONS, "Why pods do not start"))
    assert len(found) > 15
    for reason, advice in found:
        assert failure(reason, "", may_pass=False).advice == advice


def test_every_metric_is_explained() -> None:
    sources = "".join(path.read_text() for path in TELEMETRY.glob("*.py"))
    made = {name.replace(".", "_") for name in re.findall(r'"(krm_runner\.[a-z_.]+)"', sources)}
    named = re.findall(r"`(krm_runner_[a-z_]+)`", section(OPERATIONS, "Metrics"))
    assert {re.sub(r"(_seconds|_bytes)?(_total)?$", "", name) for name in named} == made
    configuration = (ROOT / "docs" / "configuration.md").read_text()
    assert [name for name in named if f"`{name}`" not in configuration] == []


def test_every_right_is_explained() -> None:
    written = [tuple(row) for row in rows(section(OPERATIONS, "Rights"))]
    assert written == [
        (
            right.verb,
            right.resource,
            "`porch-system`" if right.place is Place.OWN else "`porch-fn-system`",
            "required" if right.is_required else "optional",
            right.without,
        )
        for right in RIGHTS
    ]


def test_every_flag_that_is_named_exists() -> None:
    flags = {flag.name for flag in (*SERVE_FLAGS, *DOCTOR_FLAGS)}
    others = {"function-runner", "address", "account", "image"}
    for page in (OPERATIONS, THREATS, (ROOT / "deploy" / "README.md").read_text()):
        named = set(re.findall(r"--([a-z][a-z-]+)", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)))
        assert named <= flags | others


def test_every_threat_has_an_answer_and_its_tests_exist() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    vectors = {path.stem for path in (ROOT / "tests" / "vectors").glob("*.yaml")}
    for title in ("Function authors", "Package authors", "Neighbours in the cluster"):
        assert rows(section(THREATS, title)), title
    for line in (line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| ---")):
        threat, answer, held_by = (cell.strip() for cell in line[1:].rstrip("|").split(" | "))
        if threat == "threat":
            continue
        assert answer, threat
        for name in re.findall(r"`([a-z0-9_-]+)`", held_by):
            assert name in vectors or f"def {name}(" in tests, f"{threat} names {name}"
        assert held_by or "Not prevented" in answer or "mesh" in answer, f"nothing holds: {threat}"

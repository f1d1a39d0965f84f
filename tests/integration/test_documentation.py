"""What the documentation tells people to do works as it is written."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path

import yaml

from integration.test_eval import evaluate
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.image_map import parse_image_map
from krm_runner.core.pod_cache_config import parse_pod_cache_config
from krm_runner.rpc.status import code_of
from krm_runner.settings import SERVE_FLAGS, parse_settings
from krm_runner.settings.evaluation import EVAL_FLAGS
from krm_runner.settings.security import SECURITY_FLAGS
from support.runner import write_config, write_function

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / "docs" / "functions.md").read_text()
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
REGISTRIES = (ROOT / "docs" / "registries.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block) for block in found]


def test_the_guides_first_function(tmp_path: Path) -> None:
    write_function(tmp_path / "functions", "set-team", blocks(GUIDE, "python")[0])
    (entry,) = yaml.safe_load(next(block for block in blocks(GUIDE, "yaml") if "set-team" in block))
    config = write_config(tmp_path / "config.yaml", {entry["function"]: entry["images"]})
    shop = Path(shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop"))
    flags = (f"--functions={tmp_path / 'functions'}", f"--config={config}", "--image", entry["images"][0])
    done = evaluate(shop, *flags, "team=payments")
    assert done.returncode == 0, done.stderr
    assert "[info] team payments set on 3 resources" in done.stderr
    assert "example.com/team: payments" in (shop / "rbac.yaml").read_text()
    refused = evaluate(shop, *flags)
    assert (refused.returncode, "the function config names no team" in refused.stderr) == (1, True)


def test_the_guides_function_in_sed(tmp_path: Path) -> None:
    script = next(block for block in blocks(GUIDE, "sh") if "use-our-registry" in block)
    write_function(tmp_path / "functions", "sed", script)
    config = write_config(tmp_path / "config.yaml", {"sed": ["example.com/sed:v1"]})
    package = tmp_path / "package"
    package.mkdir()
    (package / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: docker.io/a # x\n")
    done = evaluate(package, f"--functions={tmp_path / 'functions'}", f"--config={config}", "-i", "example.com/sed:v1")
    assert done.returncode == 0, done.stderr
    assert "image: registry.example.com/a # x" in (package / "pod.yaml").read_text()


def test_every_link_to_a_file_of_the_repository_is_alive() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_image_map_of_the_registries_page_is_one() -> None:
    text = next(block for block in blocks(REGISTRIES, "yaml") if "images:" in block)
    ((name, metadata),) = parse_image_map(text.encode(), source="registries.md", default_prefix="").images.items()
    assert (name, metadata.command) == (f"{metadata.reference.name}:v0.4.1", ("/usr/local/bin/function",))


def test_the_registries_page_explains_every_error_with_its_code() -> None:
    explained = dict(re.findall(r"^\| ([A-Z_]+) \(([A-Z_]+)", REGISTRIES, re.MULTILINE))
    faults = (ImageFault(kind, "why").to_error("fn") for kind in FaultKind)
    assert explained == {error.reason: code_of(error).name for error in faults}


def test_the_pod_cache_configuration_of_the_configuration_page_is_one() -> None:
    text = next(block for block in blocks(CONFIGURATION, "yaml") if "timeToLive" in block)
    found = parse_pod_cache_config(text.encode(), source="configuration.md", default_prefix="example.com")
    assert found.warnings == ()
    assert [(function.ttl, function.max_parallel_pods) for function in found.functions.values()] == [
        (1800.0, 2),
        (None, None),
    ]


def test_the_manifests_of_the_security_page_name_flags_and_files_that_there_are() -> None:
    deployments = [yaml.safe_load(block) for block in blocks(SECURITY, "yaml") if "args:" in block]
    assert len(deployments) == 3
    for deployment in deployments:
        (container,) = deployment["containers"]
        folders = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        settings = parse_settings(container["args"], {"WRAPPER_SERVER_IMAGE": "example.com/wrapper:v1"})
        assert settings.pod is not None
        files = [settings.security.tokens, settings.pod.token_keys]
        if settings.security.certificates is not None:
            files += [settings.security.certificates.certificate, settings.security.certificates.key]
            assert settings.security.health_port == container["readinessProbe"]["grpc"]["port"]
        assert any(files)
        assert all(str(file.parent) in folders for file in files if file is not None)
        assert set(folders.values()) == {volume["name"] for volume in deployment["volumes"]}


def test_every_flag_of_the_security_page_is_one() -> None:
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", SECURITY)) - {"from-file"}
    assert named <= {flag.name for flag in (*SERVE_FLAGS, *EVAL_FLAGS)}
    assert {flag.name for flag in SECURITY_FLAGS} <= named

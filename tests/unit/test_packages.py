"""Package folders to resource lists and back: what a function did not change keeps its text to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from krm_runner.core.errors import ConfigurationError
from krm_runner.packages.files import PackageFile, read_package
from krm_runner.packages.unwrapping import Changes, to_changes
from krm_runner.packages.wrapping import config_map, to_resource_list

WEB = """\
# The shop's front door.
# It has two comments.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web # kept
spec:
  replicas:   3
  template:
    spec:
      containers:
        - name: nginx
          image: "nginx:1.27"   # pinned
          command: ['sh', '-c', 'echo # no comment']
          text: |
            line one

              indented
"""
MANY = """\
---
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {a: b}}
---
# between
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  annotations: {}
data:
  key: "true"
--- # with a comment
just: values
---
apiVersion: v1
kind: Secret
metadata:
    name: indented-by-four
    labels:
        a: "1"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "web.yaml").write_text(WEB)
    (tmp_path / "sub" / "many.yml").write_text(MANY)
    (tmp_path / "crlf.yaml").write_bytes(b"apiVersion: v1\r\nkind: ConfigMap\r\nmetadata:\r\n  name: dos\r\n")
    (tmp_path / "values.yaml").write_text("just: values\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "Kptfile").write_text("apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: shop\n")
    (tmp_path / "README.md").write_text("apiVersion: not YAML")
    (tmp_path / ".hidden" / "x.yaml").write_text(WEB)
    return tmp_path


def read(folder: Path, *, include_meta: bool = False) -> list[PackageFile]:
    return read_package(folder, include_meta=include_meta, progress=lambda _done, _all: None)


def changes(folder: Path, old: str = "", new: str = "") -> Changes:
    """What is written after a function replaced one text by another in the list."""
    files = read(folder)
    text = to_resource_list(files, None)
    assert old in text
    return to_changes(files, text.replace(old, new))


def test_every_resource_is_there_with_its_origin(folder: Path) -> None:
    text = to_resource_list(read(folder), config_map({"namespace": "x"}))
    document = yaml.safe_load(text)
    assert document["functionConfig"]["data"] == {"namespace": "x"}
    names = [
        (
            item["metadata"]["name"],
            item["metadata"]["annotations"]["config.kubernetes.io/path"],
            item["metadata"]["annotations"]["internal.config.kubernetes.io/index"],
        )
        for item in document["items"]
    ]
    assert names == [
        ("dos", "crlf.yaml", "0"),
        ("web", "sub/many.yml", "0"),
        ("settings", "sub/many.yml", "1"),
        ("indented-by-four", "sub/many.yml", "3"),
        ("web", "web.yaml", "0"),
    ]
    assert "# The shop's front door.\n# It has two comments.\n- apiVersion: apps/v1\n" in text


def test_a_kptfile_is_there_when_it_is_asked_for(folder: Path) -> None:
    assert "kind: Kptfile" not in to_resource_list(read(folder), None)
    assert "kind: Kptfile" in to_resource_list(read(folder, include_meta=True), None)


def test_an_unchanged_list_changes_no_file(folder: Path) -> None:
    assert changes(folder) == Changes()


def test_a_list_that_another_writer_wrote_changes_no_file(folder: Path) -> None:
    files = read(folder)
    rewritten = yaml.safe_dump(yaml.safe_load(to_resource_list(files, None)))
    assert to_changes(files, rewritten) == Changes()


def test_only_the_changed_value_changes(folder: Path) -> None:
    found = changes(folder, "nginx:1.27", "nginx:1.28")
    assert found == Changes({"web.yaml": WEB.replace("nginx:1.27", "nginx:1.28")})
    files = read(folder)
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"][2]["data"]["key"] = "false"
    document["items"][3]["metadata"]["namespace"] = "x"
    many = MANY.replace('"true"', '"false"') + "    namespace: x\n"
    # The writer lost all comments and the order of keys; the package does not.
    assert to_changes(files, yaml.safe_dump(document)) == Changes({"sub/many.yml": many})


def test_comments_that_the_function_wrote_are_kept(folder: Path) -> None:
    found = changes(folder, "name: web # kept", "name: shop # kpt-set: ${name}")
    assert found == Changes({"web.yaml": WEB.replace("name: web # kept", "name: shop # kpt-set: ${name}")})


def test_removed_resources_leave_their_file_and_empty_files_go(folder: Path) -> None:
    files = read(folder)
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"] = document["items"][2:3]
    found = to_changes(files, yaml.safe_dump(document))
    assert found.deleted == ("crlf.yaml", "web.yaml")
    assert found.written == {
        "sub/many.yml": MANY[MANY.index("# between") : MANY.index("---\napiVersion: v1\nkind: Secret")]
    }


def test_new_resources_get_a_file_or_join_the_one_they_name(folder: Path) -> None:
    files = read(folder)
    text = to_resource_list(files, None)
    added = """\
- apiVersion: v1
  kind: Namespace
  metadata:
    name: shop # new
- apiVersion: v1
  kind: ConfigMap
  metadata:
    name: more
    annotations:
      config.kubernetes.io/path: web.yaml
"""
    found = to_changes(files, text + added)
    assert found.written == {
        "namespace_shop.yaml": "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop # new\n",
        "web.yaml": WEB + "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: more\n",
    }


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.yaml", "a/../../b.yaml"])
def test_nothing_is_written_outside_of_the_package(folder: Path, path: str) -> None:
    with pytest.raises(ConfigurationError, match="outside of the package"):
        changes(folder, "config.kubernetes.io/path: web.yaml", f"config.kubernetes.io/path: {path}")


def test_json_output_is_understood(folder: Path) -> None:
    import json

    files = read(folder)
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"][0]["metadata"]["name"] = "linux"
    found = to_changes(files, json.dumps(document))
    assert found.written.keys() == {"crlf.yaml"}
    assert yaml.safe_load(found.written["crlf.yaml"])["metadata"]["name"] == "linux"


def test_broken_files_are_named(folder: Path) -> None:
    (folder / "broken.yaml").write_text("a: [")
    with pytest.raises(ConfigurationError, match=r"broken\.yaml: not valid YAML"):
        read(folder)
    (folder / "broken.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"cannot read .*broken\.yaml"):
        read(folder)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        read(folder / "web.yaml")

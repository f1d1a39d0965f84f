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
    (folder / "broken.yaml").write_text("%TAG !e! tag:example.com,2000:\n---\n" + HEAD)
    with pytest.raises(ConfigurationError, match=r"broken\.yaml: a %TAG directive"):
        read(folder)
    (folder / "broken.yaml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"cannot read .*broken\.yaml"):
        read(folder)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        read(folder / "web.yaml")


HEAD = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n"
ODD = {
    "alias": "x: &a {k: v}\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels: *a\n",
    "merge": "base: &b {k: v}\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  <<: *b\n  l: m\n",
    "bom": "\ufeffapiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n",
    "kept breaks": HEAD + "data:\n  k: |+\n    text\n\n\n",
    "no last break": HEAD + "data:\n  k: |\n    a\n    b",
    "odd keys": HEAD + "data:\n  on: x\n  true: y\n  1: z\n",
    "empty metadata": "apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n",
    "no metadata": "apiVersion: v1\nkind: ConfigMap\n",
    "own annotations": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  annotations:\n"
        "    config.kubernetes.io/path: other.yaml\n    config.kubernetes.io/index: '7'\n"
    ),
    "odd values": HEAD + "data:\n  a: =\n  b: !Ref x\n  c: 2024-02-30\n",
    "foot comments": HEAD + "# foot\n---\n# head\napiVersion: v1\nkind: B\n# end\n",
    "indented root": "  apiVersion: v1\n  kind: ConfigMap\n  metadata:\n    name: a\n# less\n",
    "end marker": HEAD + "... # over\n",
    "directive": "%YAML 1.1\n# of the file\n---\n" + HEAD + "...\n%YAML 1.1\n---\n" + HEAD,
    "on the line of its marker": "--- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}} # c\n--- !!map\n" + HEAD,
    "bom and directive": "\ufeff%YAML 1.1\n---\n" + HEAD,
    "bom and marker": "\ufeff---\n" + HEAD,
    "blank text": "apiVersion: v1\nkind: ConfigMap\ndata:\n  k: |\n    a\n      \n    b\n",
}


@pytest.mark.parametrize("name", ODD, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("rewrites", [False, True], ids=["copied", "rewritten"])
def test_odd_texts_survive_a_function_that_changes_nothing(tmp_path: Path, name: str, rewrites: bool) -> None:
    (tmp_path / "odd.yaml").write_text(ODD[name])
    files = read(tmp_path)
    text = to_resource_list(files, None)
    if rewrites and name != "odd values":
        text = yaml.safe_dump(yaml.safe_load(text), sort_keys=False)
    assert to_changes(files, text) == Changes()


def test_documents_after_directives_and_on_the_line_of_their_marker_are_changed_in_place(tmp_path: Path) -> None:
    text = "%YAML 1.1\n---\n" + HEAD + "--- {apiVersion: v1, kind: Pod, metadata: {name: b}} # second\n"
    (tmp_path / "odd.yaml").write_text(text)
    found = changes(tmp_path, "kind: Pod", "kind: Service")
    assert found.written["odd.yaml"] == text.replace("kind: Pod", 'kind: "Service"')
    files = read(tmp_path)
    assert to_changes(files, "kind: ResourceList\nitems: []\n") == Changes(deleted=("odd.yaml",))
    # A comment of the function's own makes its text win, which is no flow.
    commented = to_resource_list(files, None).replace(
        "{apiVersion: v1, kind: Pod,", "# mine\n  {apiVersion: v1, kind: Pod,"
    )
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"][1]["kind"] = "Service"
    rewritten = yaml.safe_dump(document).replace("kind: Service", "kind: Service # mine")
    for output in (commented, rewritten):
        written = to_changes(files, output).written.get("odd.yaml", text)
        assert [each["metadata"]["name"] for each in yaml.safe_load_all(written)] == ["a", "b"], written


def test_a_foot_comment_stays_with_its_document(tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(ODD["foot comments"])
    files = read(tmp_path)
    changed = to_resource_list(files, None).replace("kind: B", "kind: C")
    assert to_changes(files, changed) == Changes({"odd.yaml": ODD["foot comments"].replace("kind: B", "kind: C")})


def test_a_growing_list_keeps_its_comments(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: Pod\nargs:\n  # why\n  - -v\n  - -x # reason\n"
    (tmp_path / "pod.yaml").write_text(text)
    files = read(tmp_path)
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"][0]["args"].append("-new")
    assert to_changes(files, yaml.safe_dump(document)) == Changes({"pod.yaml": text + "  - -new\n"})


def test_a_hash_in_a_text_is_no_comment(tmp_path: Path) -> None:
    text = HEAD.replace("name: a", "name: a # keep me") + "data:\n  script: |-\n    run\n    # last line\n"
    (tmp_path / "map.yaml").write_text(text)
    files = read(tmp_path)
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"][0]["metadata"]["labels"] = {"a": "b"}
    found = to_changes(files, yaml.safe_dump(document)).written["map.yaml"]
    assert found == text.replace("# keep me\n", "# keep me\n  labels:\n    a: b\n")


def test_lines_of_a_crlf_file_end_with_crlf(folder: Path) -> None:
    files = read(folder)
    document = yaml.safe_load(to_resource_list(files, None))
    document["items"][0]["metadata"]["namespace"] = "x"
    found = to_changes(files, yaml.safe_dump(document)).written["crlf.yaml"]
    assert found.count("\n") == found.count("\r\n") == 5


@pytest.mark.parametrize("path", [".git/hooks/post-commit", "a/.b.yaml", "."])
def test_hidden_files_are_no_part_of_a_package(folder: Path, path: str) -> None:
    with pytest.raises(ConfigurationError, match="hidden files"):
        changes(folder, "config.kubernetes.io/path: web.yaml", f"config.kubernetes.io/path: {path}")

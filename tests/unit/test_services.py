"""The copy of the Services, and who has lost its pod."""

from __future__ import annotations

from krm_runner.core.json_object import JsonObject
from krm_runner.kube.reflector import ChangeKind
from krm_runner.pods.services import Services


def service(name: str, *, uid: str = "", selects: str = "", label: str = "fn.kpt.dev/image") -> JsonObject:
    labels = {label: name}
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "labels": labels},
        "spec": {"clusterIP": f"ip-{name}", "selector": {"fn.kpt.dev/image": selects or name}},
    }


def test_what_is_known_follows_the_cluster() -> None:
    services = Services()
    assert (services.cluster_ip("a"), services.uid("a")) == ("", "")
    services.replaced([service("a"), {"metadata": {"name": "theirs", "uid": "x"}}])
    assert (services.cluster_ip("a"), services.uid("a")) == ("ip-a", "uid-a")
    assert services.uid("theirs") == ""
    services.changed(ChangeKind.ADDED, service("b"))
    services.changed(ChangeKind.MODIFIED, service("a", uid="new"))
    services.changed(ChangeKind.ADDED, {"metadata": {"name": "theirs", "uid": "x"}})
    assert (services.uid("a"), services.uid("b"), services.uid("theirs")) == ("new", "uid-b", "")
    services.changed(ChangeKind.DELETED, service("b"))
    assert services.uid("b") == ""
    services.replaced([])
    assert services.uid("a") == ""


def test_one_as_porchs_own_runner_makes_it_is_of_a_function_pod() -> None:
    """It does not have our label. One that somebody changes into something else is known no more."""
    name = "app.kubernetes.io/name"
    services = Services(older_than=0)
    services.replaced([service("a", label=name), service("b", label=name, selects="a"), service("c", label="app")])
    assert [services.uid(each) for each in "abc"] == ["uid-a", "", ""]
    assert services.orphans((), now=0) == [("a", "uid-a")]
    services.changed(ChangeKind.MODIFIED, service("a", label=name, selects="b"))
    assert services.uid("a") == ""


def test_an_orphan_was_seen_alone_for_long_enough() -> None:
    services = Services(older_than=60)
    services.replaced([service("a"), service("b")])
    assert services.orphans({"a"}, now=1000) == []
    assert services.orphans({"a"}, now=1059) == []
    assert services.orphans({"a"}, now=1060) == [("b", "uid-b")]


def test_a_pod_in_between_starts_the_time_anew() -> None:
    services = Services(older_than=60)
    services.replaced([service("a")])
    services.orphans((), now=0)
    services.orphans(("a",), now=30)
    assert services.orphans((), now=70) == []
    assert services.orphans((), now=130) == [("a", "uid-a")]


def test_another_service_of_the_name_has_its_own_time() -> None:
    services = Services(older_than=60)
    services.replaced([service("a")])
    services.orphans((), now=0)
    services.changed(ChangeKind.MODIFIED, service("a", uid="new"))
    assert services.orphans((), now=70) == []
    assert services.orphans((), now=130) == [("a", "new")]


def test_what_is_going_or_selects_a_pod_by_another_name_is_no_orphan() -> None:
    services = Services(older_than=0)
    going = service("going")
    assert isinstance(going["metadata"], dict)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    services.replaced([going, service("front", selects="pod-1"), service("alone", selects="pod-2")])
    assert services.orphans(["pod-1"], now=0) == [("alone", "uid-alone")]

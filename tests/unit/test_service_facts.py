"""What is read from a Service."""

from __future__ import annotations

from krm_runner.core.json_object import JsonObject
from krm_runner.core.service_facts import ServiceFacts, service_facts_of

POD: JsonObject = {"metadata": {"labels": {"fn.kpt.dev/image": "pod-1", "app": "function"}}}


def service(**spec: object) -> JsonObject:
    """As the API server has it."""
    return {
        "metadata": {"name": "pod-1", "uid": "u1", "labels": {"fn.kpt.dev/image": "pod-1"}},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 9446}], "selector": {"fn.kpt.dev/image": "pod-1"}, **spec},
    }


def facts(found: JsonObject) -> ServiceFacts:
    known = service_facts_of(found)
    assert known is not None
    return known


def test_ours_has_facts_and_others_have_none() -> None:
    known = facts(service())
    assert (known.name, known.uid, known.cluster_ip, known.is_going) == ("pod-1", "u1", "10.0.0.1", False)
    assert service_facts_of({"metadata": {"name": "theirs"}}) is None
    assert service_facts_of({}) is None


def test_a_headless_service_has_no_address() -> None:
    assert facts(service(clusterIP="None")).cluster_ip == ""


def test_one_that_is_deleted_is_going() -> None:
    found = service()
    assert isinstance(found["metadata"], dict)
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert facts(found).is_going


def test_it_leads_to_the_pod_that_it_selects_on_the_wrappers_port() -> None:
    assert facts(service()).leads_to(POD)
    assert facts(service(selector={"fn.kpt.dev/image": "pod-1", "app": "function"})).leads_to(POD)
    assert not facts(service(selector={"fn.kpt.dev/image": "pod-1", "app": "other"})).leads_to(POD)
    assert not facts(service(selector={"fn.kpt.dev/image": "pod-2"})).leads_to(POD)
    assert not facts(service(selector={"app": "function"})).leads_to(POD)
    assert not facts(service(selector=None)).leads_to(POD)
    assert not facts(service(ports=[{"port": 80}])).leads_to(POD)
    assert not facts(service(ports=[{"port": 9446, "protocol": "UDP"}])).leads_to(POD)

"""The status of a pod with its events and its log, as far as the account may read them."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_status import Ready, Starting, Terminating
from krm_runner.kube.client import KubeClient
from krm_runner.pods.evidence import Evidence
from support.played_api import played_api
from support.service_account import account, grant, new_account
from unit.test_pod_status import RUNNING, condition, ended, event, function, pod, seen, waiting

COUNTS: JsonObject = {"ready": False, "restartCount": 0, "imageID": ""}
PULL = 'Failed to pull image "example.com/timeout-not-found:v1": unauthorized'


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


async def failed_pull(client: KubeClient, namespace: str) -> JsonObject:
    """A pod whose image cannot be pulled; only its event says why, and another pod's event lies."""
    place = f"/api/v1/namespaces/{namespace}"
    await client.create(
        f"{place}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    )
    container: JsonObject = {"name": "function", "image": "example.com/timeout-not-found:v1"}
    spec: JsonObject = {"containers": [container]}
    made = await client.create(
        f"{place}/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    )
    uid = as_text(as_object(made["metadata"])["uid"])
    for number, (of, message) in enumerate(((uid, PULL), (str(uuid.uuid4()), "timeout"))):
        said = event("Failed", message, uid=of)
        involved: JsonObject = {**as_object(said["involvedObject"]), "namespace": namespace}
        metadata: JsonObject = {"name": f"p.{number}"}
        await client.create(f"{place}/events", {**said, "metadata": metadata, "involvedObject": involved})
    status = {"containerStatuses": [{**function(waiting("ImagePullBackOff", "Back-off")), **COUNTS}]}
    return await client.patch(f"{place}/pods/p/status", {"status": status})


async def test_the_event_of_the_pod_says_why(client: KubeClient, namespace: str) -> None:
    status = await Evidence(client, namespace=namespace).status_of(await failed_pull(client, namespace))
    assert isinstance(status, Failed)
    assert status.reason == "ImagePullBackOff"
    assert "unauthorized" in status.message
    assert not status.may_pass


async def test_what_may_not_be_read_is_said_once_and_left_out_for_a_while(client: KubeClient, namespace: str) -> None:
    found = await failed_pull(client, namespace)
    async with account(client, namespace, verbs=["get"], resources=["pods"]) as nobody:
        asked: list[str] = []
        nobody.on_answer = lambda verb, path, _: asked.append(f"{verb} {path.rpartition('/')[2]}")
        evidence = Evidence(nobody, namespace=namespace)
        with capture_logs() as logs:
            for _ in range(3):
                status = await evidence.status_of(found)
                assert isinstance(status, Failed)
                assert status.reason == "ImagePullBackOff"
                await evidence.status_of(seen(ended(1)))
        assert sorted(asked) == ["get log", "list events"]
        assert sorted(entry["event"] for entry in logs) == [
            "events of pods may not be read: errors have less to say",
            "logs of pods may not be read: errors have less to say",
        ]


async def test_a_right_that_is_granted_later_is_used(client: KubeClient, namespace: str) -> None:
    found = await failed_pull(client, namespace)
    name = await new_account(client, namespace)
    async with account(client, namespace, verbs=["get"], resources=["pods"], name=name) as later:
        evidence = Evidence(later, namespace=namespace, forbidden_for=0.0)
        assert "unauthorized" not in str(await evidence.status_of(found))
        await grant(client, namespace, name, verbs=["list"], resources=["events"])
        async with asyncio.timeout(20):
            while "unauthorized" not in str(await evidence.status_of(found)):
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (seen(ended(3)), "container=function&tailLines=10&limitBytes=4096"),
        (
            seen(waiting("CrashLoopBackOff"), lastState=ended(3)),
            "container=function&tailLines=10&limitBytes=4096&previous=true",
        ),
        (
            seen(waiting("PodInitializing"), init={"name": "i", "state": ended(3)}),
            "container=i&tailLines=10&limitBytes=4096",
        ),
    ],
)
async def test_the_log_of_a_container_that_ended_without_a_word(found: JsonObject, expected: str) -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        is_log = request.path.endswith("/log")
        return web.Response(text="one line\nno such file\n") if is_log else web.json_response({"items": []})

    async with played_api(handle) as client:
        status = await Evidence(client, namespace="ns").status_of(found)
    assert isinstance(status, Failed)
    assert status.message.endswith("ended with exit code 3: one line\nno such file")
    assert f"/api/v1/namespaces/ns/pods/p/log?{expected}" in asked


@pytest.mark.parametrize(
    "found",
    [
        pod(
            "Running", podIP="10.0.0.1", conditions=[condition("Ready", "True")], containerStatuses=[function(RUNNING)]
        ),
        {**pod(), "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
)
async def test_nobody_is_asked_about_a_pod_that_needs_no_explanation(found: JsonObject) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        raise AssertionError(request.path)

    async with played_api(handle) as client:
        assert isinstance(await Evidence(client, namespace="ns").status_of(found), Ready | Terminating)


async def test_answers_that_do_not_come_are_not_waited_for() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            return web.json_response({"items": [event("FailedMount", "no such volume")]})
        await asyncio.sleep(60)
        return web.Response()

    async with played_api(handle) as client:
        evidence = Evidence(client, namespace="ns")
        status = await asyncio.wait_for(evidence.status_of(seen(ended(1))), 30)
        assert isinstance(status, Failed)
        assert await evidence.status_of(pod()) == Starting("FailedMount", "no such volume")


async def test_answers_that_make_no_sense_change_nothing() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500 if request.path.endswith("/log") else 200, text="[garbage")

    async with played_api(handle) as client:
        status = await Evidence(client, namespace="ns").status_of(seen(ended(1)))
        assert isinstance(status, Failed)
        assert status.message == 'container "function" ended with exit code 1'

"""The ConfigMaps of the wrapper server: what they hold, what is decided about them, and how that is done."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from krm_runner.core.errors import (
    ConfigurationError,
    KubernetesConflictError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.kept_object import deletion, extension
from krm_runner.core.pod_failure import Failed, failure
from krm_runner.core.wrapper_config_maps import (
    LABEL,
    PART_BYTES,
    Check,
    ConfigMapFacts,
    Create,
    Delete,
    Extend,
    Step,
    facts_of,
    missing,
    mounted_by,
    parts_of,
    steps,
)
from krm_runner.kube.reflector import ChangeKind
from krm_runner.pods.wrapper_config_maps import WrapperConfigMaps

PROGRAM = b"\x7fELF" + b"x" * 10
LARGE = b"\x7fELF" + bytes(range(256)) * 6000
NOW, STAY = 1_800_000_000.0, 3600.0


# --- what they hold -----------------------------------------------------------------------------------------------


def test_a_small_program_is_one_part() -> None:
    (part,) = parts_of(PROGRAM, source="it")
    assert part.key == "wrapper-server"
    assert part.name == "krm-runner-wrapper-8cd9b27f4e42" or part.name.startswith("krm-runner-wrapper-")
    assert len(part.name) == len("krm-runner-wrapper-") + 12
    manifest = part.manifest(namespace="functions", reclaim_after=17)
    assert manifest["immutable"] is True
    assert manifest["binaryData"] == {"wrapper-server": base64.b64encode(PROGRAM).decode()}
    metadata = as_object(manifest["metadata"])
    assert (metadata["name"], metadata["namespace"]) == (part.name, "functions")
    assert as_object(metadata["annotations"])["fn.kpt.dev/reclaim-after"] == "17"
    assert part.fault(manifest) == ""


def test_a_large_one_is_several_that_fit_and_are_it_together() -> None:
    parts = parts_of(LARGE, source="it")
    assert [part.key for part in parts] == ["wrapper-server", "wrapper-server.1"]
    contents = [base64.b64decode(part.encoded) for part in parts]
    assert b"".join(contents) == LARGE
    assert max(map(len, contents)) <= PART_BYTES
    assert len({part.name for part in parts}) == 2
    assert parts_of(LARGE, source="it") == parts
    assert parts_of(LARGE + b"y", source="it")[1].name != parts[1].name


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "/x is no program for Linux"),
        (b"#!/bin/sh\n", "/x is no program for Linux"),
        (b"\x7fELF" + bytes(4 * PART_BYTES), "/x has 4000004 bytes, too many for ConfigMaps"),
    ],
)
def test_what_is_no_packed_wrapper_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parts_of(content, source="/x")
    assert str(refusal.value).startswith(f"--wrapper-file: {why}")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"immutable": False}, "it is not immutable"),
        ({"binaryData": {"wrapper-server": "AAAA"}}, "it holds something else"),
        ({"binaryData": None}, "it holds something else"),
        ({"data": {"wrapper-server.1": "x"}}, "it holds something else"),
        ({"metadata": {"name": "theirs"}}, "it does not have our label"),
    ],
)
def test_one_that_is_not_as_it_should_be_is_not_used(change: JsonObject, fault: str) -> None:
    (part,) = parts_of(PROGRAM, source="it")
    found = part.manifest(namespace="functions", reclaim_after=17)
    assert part.fault({**found, **change}).startswith(fault)


# --- what is decided ----------------------------------------------------------------------------------------------


def there(name: str, *, uid: str = "", until: float | None = NOW + STAY, is_going: bool = False) -> ConfigMapFacts:
    return ConfigMapFacts(name, uid or f"uid-{name}", "1", None if until is None else int(until), is_going)


def due(*seen: ConfigMapFacts, checked: tuple[str, ...] = ("uid-a",), mounted: tuple[str, ...] = ()) -> list[Step]:
    known = {facts.name: facts for facts in seen}
    return list(steps(known, ["a"], checked=checked, mounted=mounted, stay=STAY, now=NOW))


def test_what_is_due() -> None:
    until = int(NOW + STAY)
    assert due() == [Create("a", until)]
    assert due(there("a", is_going=True)) == [Create("a", until)]
    assert due(there("a"), checked=()) == [Check(there("a"))]
    assert due(there("a")) == []
    assert due(there("a", until=NOW + 0.76 * STAY)) == []
    for late in (there("a", until=NOW + 0.74 * STAY), there("a", until=NOW - 1), there("a", until=None)):
        assert due(late) == [Extend(late, until)]


def test_what_others_left_behind_goes_when_its_time_is_over_and_no_pod_has_it() -> None:
    own, expired, used = there("a"), there("b", until=NOW - 1), there("c", until=NOW + 1)
    assert due(own, expired, used) == [Delete(expired)]
    assert due(own, expired, used, mounted=("b",)) == []
    assert due(own, there("b", until=NOW - 1, is_going=True)) == []
    assert due(own, there("b", until=None)) == [Extend(there("b", until=None), int(NOW + STAY))]


def test_what_is_sent_hits_the_one_that_was_seen() -> None:
    assert deletion(there("a"))["preconditions"] == {"uid": "uid-a", "resourceVersion": "1"}
    patch = as_object(extension(there("a"), 17)["metadata"])
    assert (patch["uid"], patch["annotations"]) == ("uid-a", {"fn.kpt.dev/reclaim-after": "17"})


def test_pods_say_which_they_have() -> None:
    sources = [{"configMap": {"name": "krm-runner-wrapper-a"}}, {"secret": {"name": "krm-runner-wrapper-no"}}]
    volumes: list[JsonObject] = [
        {"name": "tools", "projected": {"sources": sources}},
        {"name": "one", "configMap": {"name": "krm-runner-wrapper-b"}},
        {"name": "theirs", "configMap": {"name": "settings"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    assert mounted_by([{"spec": {"volumes": volumes}}, {"spec": {}}, {}]) == {
        "krm-runner-wrapper-a",
        "krm-runner-wrapper-b",
    }


def test_errors_say_what_to_do() -> None:
    def said(error: KubernetesError) -> Failed:
        return missing(error, name="krm-runner-wrapper-x", namespace="functions")

    forbidden = said(KubernetesForbiddenError('cannot create resource "configmaps"', status=403))
    assert (forbidden.reason, forbidden.may_pass) == ("Forbidden", False)
    assert 'ConfigMap "krm-runner-wrapper-x"' in forbidden.message
    assert 'cannot create resource "configmaps"' in forbidden.message
    assert forbidden.advice.startswith(
        "grant the runner create, delete, list, patch and watch on configmaps in functions"
    )
    quota = said(KubernetesForbiddenError("exceeded quota: count/configmaps", status=403))
    assert (quota.may_pass, "quota" in quota.advice) == (True, True)
    away = said(KubernetesUnavailableError("no answer"))
    assert (away.reason, away.may_pass) == ("ApiServerUnavailable", True)
    mount = 'MountVolume.SetUp failed for volume "wrapper-server-tools" : configmap "{}" not found'
    ours = failure("FailedMount", mount.format("krm-runner-wrapper-x"), may_pass=True)
    assert ours.advice.startswith("the runner makes this ConfigMap again when somebody deletes it")
    assert "pod template" in failure("FailedMount", mount.format("settings"), may_pass=True).advice


# --- how it is done -----------------------------------------------------------------------------------------------


class Cluster:
    """ConfigMaps as an API server has them, and its refusals."""

    def __init__(self) -> None:
        self.objects: dict[str, JsonObject] = {}
        self.refusals: dict[str, KubernetesError] = {}
        self.asked: list[tuple[str, str]] = []
        self._count = 0

    def put(self, body: JsonObject) -> JsonObject:
        self._count += 1
        metadata = {**as_object(body["metadata"]), "uid": f"uid-{self._count}", "resourceVersion": str(self._count)}
        made = self.objects[str(metadata["name"])] = {**body, "metadata": metadata}
        return made

    async def get(self, path: str, query: Mapping[str, str]) -> JsonObject:
        name = query["fieldSelector"].removeprefix("metadata.name=")
        self._answer("list", name)
        return {"items": [self.objects[name]] if name in self.objects else []}

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        name = str(as_object(body["metadata"])["name"])
        self._answer("create", name)
        if name in self.objects:
            raise KubernetesConflictError("it exists", status=409)
        return self.put(body)

    async def patch(self, path: str, body: JsonObject) -> JsonObject:
        name = path.rpartition("/")[2]
        self._answer("patch", name)
        return self._existing(name)

    async def delete(self, path: str, body: JsonObject) -> JsonObject:
        name = path.rpartition("/")[2]
        self._answer("delete", name)
        self._existing(name)
        del self.objects[name]
        return {}

    def _existing(self, name: str) -> JsonObject:
        if name not in self.objects:
            raise KubernetesNotFoundError("it is gone", status=404)
        return self.objects[name]

    def _answer(self, verb: str, name: str) -> None:
        self.asked.append((verb, name))
        if verb in self.refusals:
            raise self.refusals[verb]


PARTS = parts_of(LARGE, source="it")
ONE, OTHER = (part.name for part in PARTS)


@asynccontextmanager
async def kept(cluster: Cluster) -> AsyncGenerator[WrapperConfigMaps]:
    maps = WrapperConfigMaps(
        cluster, PARTS, namespace="functions", pod_ttl=60, pods=lambda: (), scan_interval=3600, clock=lambda: NOW
    )
    keeping = asyncio.create_task(maps.keep())
    try:
        yield maps
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def waited(maps: WrapperConfigMaps, *, seconds: float = 10) -> Failed | None:
    return await maps.wait(deadline=asyncio.get_running_loop().time() + seconds, trouble=lambda _: None)


async def test_all_parts_are_made_before_a_pod() -> None:
    cluster = Cluster()
    async with kept(cluster) as maps:
        assert await waited(maps) is None
        assert cluster.asked == [("create", ONE), ("create", OTHER)]
        assert sorted(cluster.objects) == sorted([ONE, OTHER])


async def test_those_of_another_runner_are_looked_into_once_and_used() -> None:
    cluster = Cluster()
    made = [cluster.put(part.manifest(namespace="functions", reclaim_after=int(NOW + STAY))) for part in PARTS]
    async with kept(cluster) as maps:
        assert await waited(maps) is None
        maps.replaced(made)
        assert await waited(maps) is None
        assert [verb for verb, _ in cluster.asked] == ["create", "list", "create", "list"]


async def test_one_that_is_deleted_is_made_again_and_waited_for() -> None:
    cluster = Cluster()
    async with kept(cluster) as maps:
        assert await waited(maps) is None
        gone = cluster.objects.pop(OTHER)
        maps.changed(ChangeKind.DELETED, gone)
        assert await waited(maps) is None
        assert as_object(cluster.objects[OTHER]["metadata"])["uid"] != as_object(gone["metadata"])["uid"]


async def test_one_that_somebody_replaced_is_not_trusted_before_it_was_looked_into() -> None:
    cluster = Cluster()
    async with kept(cluster) as maps:
        assert await waited(maps) is None
        theirs = cluster.put({**cluster.objects[ONE], "binaryData": {"wrapper-server": "AAAA"}})
        maps.changed(ChangeKind.MODIFIED, theirs)
        failed = await waited(maps)
        assert failed is not None
        assert "it holds something else" in failed.message
        assert failed.advice == "delete it, and the runner makes it again"


async def test_a_refusal_is_told_at_once_and_forgotten_when_it_is_over() -> None:
    cluster = Cluster()
    cluster.refusals["create"] = KubernetesForbiddenError('cannot create resource "configmaps"', status=403)
    async with kept(cluster) as maps:
        failed = await waited(maps)
        assert failed is not None
        assert 'cannot create resource "configmaps"' in failed.message
        cluster.refusals.clear()
        async with asyncio.timeout(10):
            while await waited(maps) is not None:
                await asyncio.sleep(0.05)


async def test_while_the_api_server_is_away_a_start_waits_until_its_time_is_over() -> None:
    cluster = Cluster()
    cluster.refusals["create"] = KubernetesUnavailableError("no answer")
    async with kept(cluster) as maps:
        said: list[str] = []
        failed = await maps.wait(deadline=asyncio.get_running_loop().time() + 0.1, trouble=said.append)
        assert failed is not None
        assert (failed.reason, failed.may_pass) == ("ApiServerUnavailable", True)
        assert said[0] == f'ConfigMap "{ONE}" of the wrapper server is not there yet'
        cluster.refusals.clear()
        assert await waited(maps) is None


async def test_what_is_seen_of_the_watch_is_what_it_is_about() -> None:
    cluster = Cluster()
    expired = cluster.put({"metadata": {"name": "krm-runner-wrapper-old", "labels": {LABEL: "packed"}}})
    as_object(expired["metadata"])["annotations"] = {"fn.kpt.dev/reclaim-after": "17"}
    foreign: JsonObject = {"metadata": {"name": "theirs", "labels": {}}}
    assert facts_of(foreign) is None
    async with kept(cluster) as maps:
        assert await waited(maps) is None
        maps.changed(ChangeKind.ADDED, foreign)
        maps.changed(ChangeKind.ADDED, expired)
        async with asyncio.timeout(10):
            while "krm-runner-wrapper-old" in cluster.objects:
                await asyncio.sleep(0.01)
        assert as_list([verb for verb, name in cluster.asked if name not in (ONE, OTHER)]) == ["delete"]

"""Pods and their Services on a real API server: put there by several at once, through lost answers and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from krm_runner.core import image_ref
from krm_runner.core.errors import (
    KubernetesError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.naming import pod_id
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_template import PodTemplate, built_in_template
from krm_runner.core.spare import Spare
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.kube.client import KubeClient
from krm_runner.pods.launcher import Adopted, Created, Launch, Launched, Launcher, NameTaken
from krm_runner.pods.pod_tokens import PodTokens
from support.processes import eventually
from support.relay import Relay
from support.service_account import account

LIMIT = 6291456
DIGEST = "sha256:" + "a1" * 32
BUILT_IN = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=LIMIT)


def image(text: str = "example.com/set-namespace:v0.4.1") -> ImageMetadata:
    return ImageMetadata(image_ref.parse(text), DIGEST, DIGEST, None, ("function",))


def wanted(of: ImageMetadata | None = None, *, template: PodTemplate = BUILT_IN) -> Launch:
    of = of or image()
    return Launch(pod_id(of.reference, of.digest, 1), of, template, 1_800_000_000.5)


NAME = wanted().name


@dataclass
class Place:
    """A namespace of the test's own, seen by a client that nobody disturbs."""

    namespace: str
    client: KubeClient

    def path(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    async def names(self, kind: str) -> list[str]:
        items = as_list((await self.client.get(self.path(kind))).get("items"))
        return [as_text(as_object(as_object(item).get("metadata")).get("name")) for item in items]

    async def facts(self, name: str = NAME) -> PodFacts:
        found = facts_of(await self.client.get(self.path("pods", name)))
        assert found is not None
        return found

    async def uid(self, kind: str, name: str = NAME) -> str:
        return as_text(as_object((await self.client.get(self.path(kind, name))).get("metadata")).get("uid"))

    def launcher(self, client: Client | None = None, *, tokens: PodTokens | None = None) -> Launcher:
        return Launcher(client or self.client, namespace=self.namespace, max_message_bytes=LIMIT, tokens=tokens)


@pytest.fixture
async def place(client: KubeClient) -> Place:
    return await new_place(client)


async def new_place(client: KubeClient) -> Place:
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    place = Place(name, client)
    await client.create(
        place.path("serviceaccounts"), {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    )
    return place


class Client:
    """A client whose requests can be disturbed, by what they ask for: POST pods, GET services, ..."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.asked: list[str] = []
        self.lost: set[str] = set()
        """Done once more, and the answer lost."""
        self.held: dict[str, asyncio.Event] = {}
        """Done, and the answer kept back."""
        self.errors: dict[str, list[KubernetesError]] = {}
        """Not done."""

    async def get(self, path: str, *, timeout: float | None = None) -> JsonObject:
        async with self._disturbed("GET", path.rpartition("/")[0]):
            return await self._client.get(path, timeout=timeout)
        raise AssertionError("unreachable")

    async def create(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject:
        async with self._disturbed("POST", path):
            return await self._client.create(path, body, timeout=timeout)
        raise AssertionError("unreachable")

    async def patch(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject:
        return await self._client.patch(path, body, timeout=timeout)

    async def delete(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject:
        async with self._disturbed("DELETE", path.rpartition("/")[0]):
            return await self._client.delete(path, body, timeout=timeout)
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def _disturbed(self, method: str, collection: str) -> AsyncGenerator[None]:
        what = f"{method} {collection.rpartition('/')[2]}"
        self.asked.append(what)
        if self.errors.get(what):
            raise self.errors[what].pop(0)
        yield
        if what in self.lost:
            self.lost.remove(what)
            raise KubernetesUnavailableError(f"{what}: the connection was lost")
        if what in self.held:
            await self.held[what].wait()


async def launch(launcher: Launcher, what: Launch | None = None, *, seconds: float = 30) -> tuple[Launched, list[str]]:
    trouble: list[str] = []
    deadline = asyncio.get_running_loop().time() + seconds
    return await launcher.launch(what or wanted(), deadline=deadline, trouble=trouble.append), trouble


async def test_a_pod_and_its_service_are_created(place: Place) -> None:
    result, trouble = await launch(place.launcher())
    assert result == Created(await place.uid("pods"))
    assert trouble == []
    facts = await place.facts()
    assert facts.serves(image(), template_version=BUILT_IN.version)
    assert facts.reclaim_after == 1_800_000_001
    assert await place.names("services") == [NAME]


async def test_launchers_at_once_make_one_pod(place: Place) -> None:
    results = [result for result, _ in await asyncio.gather(*(launch(place.launcher()) for _ in range(5)))]
    uid = await place.uid("pods")
    assert results.count(Created(uid)) == 1
    assert results.count(Adopted(uid)) == 4
    assert await place.names("pods") == await place.names("services") == [NAME]


@pytest.mark.parametrize("lost", [{"POST pods"}, {"POST services"}, {"POST pods", "POST services"}])
async def test_a_lost_answer_ends_in_adoption(place: Place, lost: set[str]) -> None:
    client = Client(place.client)
    client.lost = set(lost)
    result, trouble = await launch(place.launcher(client))
    kind = Adopted if "POST pods" in lost else Created
    assert result == kind(await place.uid("pods"))
    assert len(trouble) == len(lost)
    assert await place.names("pods") == await place.names("services") == [NAME]


async def test_connections_that_are_cut_all_the_time(place: Place, relay: Relay) -> None:
    async def cut() -> None:
        for _ in range(20):
            await asyncio.sleep(0.01)
            relay.cut()

    async with asyncio.TaskGroup() as group:
        group.create_task(cut())
        done = group.create_task(launch(place.launcher()))
    result, _ = done.result()
    assert isinstance(result, Created | Adopted)
    assert result.uid == await place.uid("pods")
    assert await place.names("pods") == await place.names("services") == [NAME]


async def test_an_api_server_that_comes_back_is_waited_for(place: Place, relay: Relay) -> None:
    relay.close()
    trouble: list[str] = []
    deadline = asyncio.get_running_loop().time() + 60
    task = asyncio.create_task(place.launcher().launch(wanted(), deadline=deadline, trouble=trouble.append))
    await eventually(lambda: len(trouble) > 3, what="it is tried again")
    assert "the API server cannot be reached" in trouble[0]
    relay.reopen()
    assert isinstance(await task, Created)


async def test_an_api_server_that_stays_away_is_the_reason(place: Place, relay: Relay) -> None:
    relay.close()
    result, trouble = await launch(place.launcher(), seconds=1)
    assert isinstance(result, Failed)
    assert (result.reason, result.may_pass) == ("ApiServerUnavailable", True)
    assert trouble


async def test_what_the_server_asks_to_wait_is_waited(place: Place) -> None:
    client = Client(place.client)
    client.errors = {"POST pods": [KubernetesUnavailableError("too many", status=429, retry_after=1.0)]}
    result, trouble = await launch(place.launcher(client))
    assert isinstance(result, Created)
    assert trouble == ["too many"]
    # Longer than there is time: not waited for at all, and nothing stays behind.
    client.errors = {"POST pods": [KubernetesUnavailableError("too many", status=429, retry_after=600.0)]}
    result, _ = await launch(place.launcher(client), wanted(image("example.com/other:v1")), seconds=30)
    assert isinstance(result, Failed)
    assert "too many" in result.message
    assert await place.names("services") == [NAME]


async def test_a_pod_that_serves_something_else_has_the_name(place: Place) -> None:
    await launch(place.launcher())
    service = await place.uid("services")
    for other in (
        replace(wanted(), template=replace(BUILT_IN, version="other")),
        replace(wanted(image("example.com/elsewhere/set-namespace:v0.4.1")), name=NAME),
    ):
        result, _ = await launch(place.launcher(), other)
        assert isinstance(result, NameTaken)
        assert "serves example.com/set-namespace:v0.4.1" in result.why
    assert await place.uid("services") == service


async def test_a_pod_that_is_being_deleted_has_the_name(place: Place) -> None:
    await launch(place.launcher())
    path = place.path("pods", NAME)
    await place.client.patch(path, {"metadata": {"finalizers": ["krm-runner.test/held"]}})
    assert await place.launcher().delete(await place.facts(), service_uid=await place.uid("services"))
    assert await place.names("services") == []
    result, _ = await launch(place.launcher())
    assert result == NameTaken(f'pod "{NAME}" is being deleted')
    assert await place.names("services") == []
    await place.client.patch(path, {"metadata": {"finalizers": None}})
    assert isinstance((await launch(place.launcher()))[0], Created)


async def test_what_is_none_of_ours_is_not_touched(place: Place) -> None:
    port: JsonObject = {"port": 80}
    service: JsonObject = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": {"ports": [port]}}
    theirs = await place.client.create(place.path("services"), service)
    result, _ = await launch(place.launcher())
    assert result == NameTaken(f'Service "{NAME}" is none of ours')
    assert await place.client.get(place.path("services", NAME)) == theirs
    assert await place.names("pods") == []


async def test_a_service_that_leads_elsewhere_is_replaced_when_the_pod_is_ours(place: Place) -> None:
    await launch(place.launcher())
    service = await place.uid("services")
    await place.client.patch(place.path("services", NAME), {"spec": {"selector": {"app": "other"}}})
    # The pod of another template has the name, and so the Service is its own.
    other = replace(wanted(), template=replace(BUILT_IN, version="other"))
    assert isinstance((await launch(place.launcher(), other))[0], NameTaken)
    assert await place.uid("services") == service
    result, _ = await launch(place.launcher())
    assert isinstance(result, Adopted)
    assert await place.uid("services") != service
    found = await place.client.get(place.path("services", NAME))
    assert as_object(found["spec"])["selector"] == {"fn.kpt.dev/image": NAME}


async def test_a_service_that_is_being_deleted_is_waited_for(place: Place) -> None:
    await launch(place.launcher())
    service = await place.uid("services")
    path = place.path("services", NAME)
    await place.client.patch(path, {"metadata": {"finalizers": ["krm-runner.test/held"]}})
    assert await place.launcher().delete(await place.facts(), service_uid=service)
    trouble: list[str] = []
    deadline = asyncio.get_running_loop().time() + 30
    task = asyncio.create_task(place.launcher().launch(wanted(), deadline=deadline, trouble=trouble.append))
    await eventually(lambda: bool(trouble), what="it waits")
    assert trouble[0] == f'Service "{NAME}" is being deleted'
    await place.client.patch(path, {"metadata": {"finalizers": None}})
    assert isinstance(await task, Created)
    assert await place.uid("services") != service


@pytest.mark.parametrize(("kind", "other"), [("pods", "services"), ("services", "pods")])
async def test_a_quota_refuses_and_nothing_stays_behind(place: Place, kind: str, other: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {kind: "0"}}}
    made = await place.client.create(place.path("resourcequotas"), as_object(quota))
    # There is no controller that would do it.
    status: JsonObject = {"status": {"hard": {kind: "0"}, "used": {kind: "0"}}}
    await place.client.patch(place.path("resourcequotas", "none/status"), status)
    assert made
    await eventually_refused(place, kind)
    result, _ = await launch(place.launcher())
    assert isinstance(result, Failed)
    assert "exceeded quota" in result.message
    assert (result.reason, result.may_pass) == ("Forbidden", True)
    assert "quota" in result.advice
    assert await place.names("pods") == await place.names("services") == []


async def eventually_refused(place: Place, kind: str) -> None:
    """The API server learns of a quota a moment later."""
    async with asyncio.timeout(20):
        number = 0
        while True:
            number += 1
            result, _ = await launch(place.launcher(), replace(wanted(), name=f"probe-{number}"))
            if isinstance(result, Failed):
                return
            for each in ("pods", "services"):
                await place.client.delete(place.path(each, f"probe-{number}"), {"gracePeriodSeconds": 0})


async def test_admission_and_validation_refuse_in_their_own_words(place: Place) -> None:
    labels: JsonObject = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    await place.client.patch(f"/api/v1/namespaces/{place.namespace}", labels)
    open_pod: JsonObject = {**BUILT_IN.pod, "spec": {**as_object(BUILT_IN.pod["spec"]), "hostNetwork": True}}
    result, _ = await launch(place.launcher(), wanted(template=replace(BUILT_IN, pod=open_pod)))
    assert isinstance(result, Failed)
    assert "violates PodSecurity" in result.message
    assert not result.may_pass
    broken: JsonObject = {**BUILT_IN.pod, "spec": {**as_object(BUILT_IN.pod["spec"]), "restartPolicy": "Sometimes"}}
    result, _ = await launch(place.launcher(), wanted(template=replace(BUILT_IN, pod=broken)))
    assert isinstance(result, Failed)
    assert result.reason == "Invalid"
    assert "restartPolicy" in result.message
    assert await place.names("pods") == await place.names("services") == []


@pytest.mark.parametrize(("made", "missing"), [("pods", "services"), ("services", "pods")])
async def test_a_launch_that_is_cancelled_half_way_leaves_nothing(place: Place, made: str, missing: str) -> None:
    client = Client(place.client)
    away = KubernetesUnavailableError("away for a while", retry_after=20.0)
    client.errors = {f"POST {missing}": [away]}
    task = asyncio.create_task(launch(place.launcher(client)))
    async with asyncio.timeout(20):
        while await place.names(made) != [NAME] or client.errors[f"POST {missing}"]:
            await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await place.names("pods") == await place.names("services") == []


async def test_a_service_whose_answer_was_lost_is_taken_back_too(place: Place) -> None:
    client = Client(place.client)
    client.lost = {"POST services"}
    client.errors = {"POST pods": [KubernetesUnavailableError("away", retry_after=1.0), KubernetesError("no")]}
    result, _ = await launch(place.launcher(client))
    assert isinstance(result, Failed)
    assert result.message == "no"
    assert await place.names("services") == []


async def test_a_launch_that_is_cancelled_at_once_asks_for_nothing(place: Place) -> None:
    client = Client(place.client)
    task = asyncio.create_task(launch(place.launcher(client)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.asked == []


async def test_a_launch_that_is_cancelled_with_its_answers_under_way_leaves_both_or_none(place: Place) -> None:
    client = Client(place.client)
    client.held = {"POST pods": asyncio.Event(), "POST services": asyncio.Event()}
    task = asyncio.create_task(launch(place.launcher(client)))
    async with asyncio.timeout(20):
        while not (await place.names("pods") and await place.names("services")):
            await asyncio.sleep(0.05)
    task.cancel()
    for held in client.held.values():
        held.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    # A whole pair is of use to whoever comes next.
    assert isinstance((await launch(place.launcher()))[0], Adopted)
    assert await place.names("services") == [NAME]


async def test_a_service_of_use_to_a_pod_of_another_runner_stays(place: Place) -> None:
    client = Client(place.client)
    refused = KubernetesError("refused", status=400)
    client.errors = {"POST pods": [KubernetesUnavailableError("away"), refused]}
    other = Client(place.client)
    other.errors = {"POST services": [KubernetesUnavailableError("away")]}
    # Ours makes the Service alone; the other one makes the pod meanwhile, and finds the Service there.
    (result, _), (beside, _) = await asyncio.gather(launch(place.launcher(client)), launch(place.launcher(other)))
    assert isinstance(result, Failed)
    assert isinstance(beside, Created)
    assert await place.names("pods") == await place.names("services") == [NAME]


async def test_a_pod_is_extended_unless_it_is_gone_or_another(place: Place) -> None:
    launcher = place.launcher()
    await launch(launcher)
    first = await place.facts()
    assert await launcher.extend(first, 1_900_000_000.2)
    assert (await place.facts()).reclaim_after == 1_900_000_001
    assert await launcher.delete(await place.facts())
    assert not await launcher.extend(first, 1_900_000_000)
    await launch(launcher)
    assert not await launcher.extend(first, 1_950_000_000)
    assert (await place.facts()).reclaim_after == 1_800_000_001


async def test_a_pod_goes_only_as_it_was_seen_and_its_service_after_it(place: Place) -> None:
    launcher = place.launcher()
    await launch(launcher)
    seen, service = await place.facts(), await place.uid("services")
    await launcher.extend(seen, 1_900_000_000)
    assert not await launcher.delete(seen, service_uid=service)
    assert await place.names("services") == [NAME]
    now = await place.facts()
    assert await launcher.delete(now, service_uid=service)
    assert await place.names("pods") == await place.names("services") == []
    assert await launcher.delete(now, service_uid=service)
    # Another pod has the name by now, and the Service is its own.
    await launch(launcher)
    assert await launcher.delete(now, service_uid=await place.uid("services"))
    assert await place.names("pods") == await place.names("services") == [NAME]
    await launcher.delete_service(NAME, service)
    assert await place.names("services") == [NAME]
    await launcher.delete_service(NAME, await place.uid("services"))
    await launcher.delete_service(NAME, service)
    assert await place.names("services") == []


SPARE = Launch("krm-spare-1", Spare("example.com/wrapper:v1"), BUILT_IN, 1_800_000_000.5)


async def test_a_spare_becomes_the_pod_of_one_launch_alone(place: Place) -> None:
    launcher = place.launcher()
    await launch(launcher, SPARE)
    seen = await place.client.get(place.path("pods", SPARE.name))
    others = [image(f"example.com/function-{number}:v1") for number in range(5)]
    results = await asyncio.gather(*(launcher.convert(seen, wanted(each)) for each in others))
    assert sorted(results) == [False] * 4 + [True]
    facts = await place.facts(SPARE.name)
    assert facts.serves(others[results.index(True)], template_version=BUILT_IN.version)
    assert facts.is_converted
    now = await place.client.get(place.path("pods", SPARE.name))
    assert not await launcher.convert(now, wanted(image("example.com/late:v1"))), "it is a function's pod by now"
    assert (await place.facts(SPARE.name)).asked_for == facts.asked_for
    assert await place.names("pods") == await place.names("services") == [SPARE.name]


async def test_a_spare_that_is_gone_or_another_does_not_become_anything(place: Place) -> None:
    launcher = place.launcher()
    await launch(launcher, SPARE)
    seen = await place.client.get(place.path("pods", SPARE.name))
    assert await launcher.delete(await place.facts(SPARE.name))
    assert not await launcher.convert(seen, wanted())
    await launch(launcher, SPARE)
    assert not await launcher.convert(seen, wanted())
    assert not (await place.facts(SPARE.name)).is_converted


async def test_refusals_to_extend_or_delete_are_told(place: Place, relay: Relay) -> None:
    launcher = place.launcher()
    await launch(launcher)
    facts = await place.facts()
    relay.close()
    with pytest.raises(KubernetesUnavailableError):
        await launcher.extend(facts, 1_900_000_000)
    with pytest.raises(KubernetesUnavailableError):
        await launcher.delete(facts)
    relay.reopen()
    nowhere = Launcher(place.client, namespace="nowhere", max_message_bytes=LIMIT)
    result, _ = await launch(nowhere)
    assert isinstance(result, Failed)
    assert 'namespaces "nowhere" not found' in result.message


async def test_an_account_without_rights_says_so(place: Place) -> None:
    async with account(place.client, place.namespace, verbs=["get"], resources=["pods"]) as nobody:
        result, trouble = await launch(place.launcher(Client(nobody)))
    assert isinstance(result, Failed)
    assert (result.reason, result.may_pass) == ("Forbidden", False)
    assert "cannot create resource" in result.message
    assert trouble == []
    with pytest.raises(KubernetesNotFoundError):
        await place.facts()


# --- tokens -------------------------------------------------------------------------------------------------------


async def test_a_pod_is_adopted_by_whoever_has_the_key_of_its_token(place: Place, tmp_path: Path) -> None:
    def keyring(*keys: str) -> PodTokens:
        path = tmp_path / "keys"
        path.write_text("\n".join(keys))
        return PodTokens(path)

    async def launched(tokens: PodTokens) -> Launched:
        template = BUILT_IN.with_tokens(tokens.keys.first)
        return (await launch(place.launcher(tokens=tokens), wanted(template=template)))[0]

    old, new = "o" * 32, "n" * 32
    assert isinstance(await launched(keyring(old)), Created)
    facts = await place.facts()
    assert len(facts.token_nonce) >= 16
    assert keyring(old).token_of(facts) is not None
    for tokens in (keyring(old), keyring(new, old), keyring(old, new)):
        assert await launched(tokens) == Adopted(facts.uid)
    for tokens in (keyring(new), PodTokens()):
        assert isinstance(await launched(tokens), NameTaken)

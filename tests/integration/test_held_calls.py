"""Calls whose messages somebody else holds: on a pod's channel, and by way of the front's link."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as RpcStatus
from structlog.testing import capture_logs

from krm_runner.core import image_ref
from krm_runner.core.errors import (
    DeadlineExceededError,
    FunctionFailedError,
    PodLostError,
    QueueFullError,
    RemoteError,
    ShuttingDownError,
)
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.core.held_call import Destination, ForwardOutcome, NoAnswer, PassedOn, ReturnedStatus
from krm_runner.core.secret import Secret
from krm_runner.evaluators.chain import ChainEvaluator
from krm_runner.front.calls import FrontCalls
from krm_runner.front.promises import FrontPromises
from krm_runner.rpc._generated import front_pb2 as protocol
from krm_runner.rpc._generated.front_pb2 import Forwarded, ToFront
from krm_runner.rpc.call_record import CallTerms
from krm_runner.rpc.status import DOMAIN, status_of
from krm_runner.rpc.wrapper_channel import Target, WrapperChannel
from krm_runner.telemetry import exporters
from krm_runner.telemetry.metrics import EvaluationMetrics

IMAGE = "example.com/some/function:v1"
POD = "function-v1-1-12345678"
ANSWERED = PassedOn(response_bytes=400, log_bytes=7, seconds=0.25)


class Holder:
    """Holds one call, and answers as it is told."""

    def __init__(self, outcome: ForwardOutcome | None = None) -> None:
        """Without an outcome, one never comes by itself."""
        self.is_promised = False
        self.connection = 0
        self._outcome = outcome
        self._disconnected = asyncio.Event()
        self.forwards: list[tuple[Destination, tuple[tuple[str, str], ...]]] = []
        self.disconnects: list[Destination] = []

    async def forward(
        self, destination: Destination, *, timeout: float, headers: Sequence[tuple[str, str]]
    ) -> ForwardOutcome:
        self.forwards.append((destination, tuple(headers)))
        if self._outcome is not None:
            return self._outcome
        async with asyncio.timeout(timeout):
            await self._disconnected.wait()
        return NoAnswer("disconnected", reached=True)

    def disconnect(self, destination: Destination) -> None:
        self.disconnects.append(destination)
        self._disconnected.set()


def request(holder: Holder, *, seconds: float = 60) -> EvaluationRequest:
    deadline = asyncio.get_running_loop().time() + seconds
    return EvaluationRequest(IMAGE, image_ref.parse(IMAGE), b"", deadline, held=holder)


def channel(token: str = "") -> WrapperChannel:
    secret = Secret(token) if token else None
    return WrapperChannel(Target("10.0.0.7:9446", "its-name"), pod=POD, message_limit=1000, token=lambda: secret)


# --- on a pod's channel -------------------------------------------------------------------------------------------


async def test_an_answer_that_the_caller_has_already() -> None:
    holder = Holder(ANSWERED)
    pod = channel("a-token-of-this-pod")
    result = await pod.evaluate(request(holder))
    assert (result.runtime, result.resource_list, result.log, result.passed_on) == ("pod", b"", b"", ANSWERED)
    await channel().evaluate(request(holder))
    await pod.evaluate(request(holder))
    (first, headers), (other, _), (again, _) = holder.forwards
    assert (first.address, first.authority) == ("10.0.0.7:9446", "its-name")
    assert headers == (("authorization", "Bearer a-token-of-this-pod"),)
    assert first == again
    assert first.connection != other.connection
    assert holder.disconnects == []
    await pod.close("it was deleted")
    await pod.close("twice")
    assert holder.disconnects == [first]


def returned(error: Exception) -> ReturnedStatus:
    assert isinstance(error, FunctionFailedError | QueueFullError | ShuttingDownError)
    status = status_of(error)
    return ReturnedStatus(status.number, status.message, status.details)


_REASON = Any()
_REASON.Pack(ErrorInfo(reason="UNAUTHENTICATED", domain=DOMAIN))
UNAUTHENTICATED = ReturnedStatus(16, "no token", RpcStatus(code=16, details=[_REASON]).SerializeToString())


@pytest.mark.parametrize(
    ("outcome", "kind", "code", "message"),
    [
        (
            returned(FunctionFailedError(IMAGE, ending="failed", results=[], stderr="", facts={"exit_code": "3"})),
            RemoteError,
            "INTERNAL",
            f'function "{IMAGE}" failed',
        ),
        (returned(QueueFullError(IMAGE, waiting=3)), RemoteError, "RESOURCE_EXHAUSTED", "has 3 calls waiting already"),
        (returned(ShuttingDownError(IMAGE)), PodLostError, "", "it is shutting down"),
        (UNAUTHENTICATED, PodLostError, "", "it does not accept this runner's token"),
        (ReturnedStatus(4, "Deadline Exceeded"), DeadlineExceededError, "", f'in pod "{POD}" did not answer before'),
        (ReturnedStatus(12, "what?"), RemoteError, "UNIMPLEMENTED", f'pod "{POD}" answered UNIMPLEMENTED: what?'),
        (ReturnedStatus(13, "what?", b"\xff\xff"), RemoteError, "INTERNAL", "answered INTERNAL: what?"),
        (ReturnedStatus(99, "what?"), RemoteError, "UNKNOWN", "answered UNKNOWN: what?"),
        (ReturnedStatus(14, "no healthy upstream"), PodLostError, "", "the proxy before it has no connection to it"),
        (NoAnswer("its port refuses connections", reached=False), PodLostError, "", "its port refuses connections"),
        (NoAnswer("the call was broken off", reached=True), PodLostError, "", "was lost: the call was broken off"),
    ],
)
async def test_what_is_no_answer_is_the_same_error_as_on_a_channel_of_ones_own(
    outcome: ForwardOutcome, kind: type[Exception], code: str, message: str
) -> None:
    with pytest.raises(kind) as failure:
        await channel().evaluate(request(Holder(outcome)))
    assert message in str(failure.value)
    if isinstance(failure.value, RemoteError):
        assert failure.value.code == code
        assert failure.value.facts["pod"] == POD
    if isinstance(failure.value, PodLostError) and isinstance(outcome, NoAnswer):
        assert failure.value.reached == outcome.reached


async def test_a_channel_that_is_closed_ends_its_held_calls() -> None:
    holder, pod = Holder(), channel()
    under_way = asyncio.create_task(pod.evaluate(request(holder)))
    await asyncio.sleep(0)
    await pod.close("it was deleted")
    with pytest.raises(PodLostError, match="it was deleted") as lost:
        await under_way
    assert lost.value.reached
    with pytest.raises(PodLostError, match="it was deleted") as lost:
        await pod.evaluate(request(Holder(ANSWERED)))
    assert not lost.value.reached


async def test_a_deadline_that_passes_while_the_message_is_elsewhere() -> None:
    with pytest.raises(DeadlineExceededError, match=f'in pod "{POD}" did not answer before the deadline'):
        await channel().evaluate(request(Holder(), seconds=0.05))
    with pytest.raises(DeadlineExceededError):
        await channel().evaluate(request(Holder(ANSWERED), seconds=0))


# --- by way of the front ------------------------------------------------------------------------------------------


class Pods:
    """A runtime that tries one pod after the other, as long as they are lost."""

    runtime = "pod"

    def __init__(self, *pods: WrapperChannel) -> None:
        self._pods = pods

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        for pod in self._pods[:-1]:
            with contextlib.suppress(PodLostError):
                return await pod.evaluate(request)
        return await self._pods[-1].evaluate(request)


class Reports(EvaluationMetrics):
    """What was reported of each call."""

    def __init__(self) -> None:
        super().__init__(exporters.start(exporters.ExporterChoice()).meter)
        self.codes: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.is_unseen = False

    def evaluated(
        self,
        *,
        image: str,
        runtime: str,
        code: str,
        seconds: float,
        request_bytes: int,
        response_bytes: int,
        unseen: bool = False,
    ) -> None:
        assert (image, runtime, unseen) == (IMAGE, "pod", self.is_unseen)
        self.codes.append(code)
        self.sizes.append((request_bytes, response_bytes))


Front = Callable[[Evaluator], FrontCalls]


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
def said() -> list[ToFront]:
    """What the front was told."""
    return []


@pytest.fixture
async def front(said: list[ToFront], reports: Reports) -> AsyncIterator[Front]:
    """Makes the runner's side; no call of it may be left."""
    made: list[FrontCalls] = []

    def front(runtime: Evaluator) -> FrontCalls:
        terms = CallTerms(default_timeout=60, default_prefix="")
        others = ChainEvaluator([runtime])
        made.append(FrontCalls(said.append, functions=None, others=others, metrics=reports, spans=None, terms=terms))
        return made[-1]

    yield front
    for calls in made:
        await calls.finish(within=5)
        assert calls.under_way == 0
        assert len(reports.codes) == 1


async def told(said: list[ToFront], kind: str) -> ToFront:
    async with asyncio.timeout(10):
        while not said:
            await asyncio.sleep(0.001)
    message = said.pop(0)
    assert message.WhichOneof("message") == kind, message
    return message


def call(*, timeout: float = 60) -> protocol.Call:
    return protocol.Call(id=5, image=IMAGE, message_bytes=300, timeout_seconds=timeout)


def lost(connection: int, why: str = "its port refuses connections") -> Forwarded:
    return Forwarded(id=5, connection=connection, trouble=protocol.Trouble(why=why))


def answered(connection: int) -> Forwarded:
    answer = protocol.Answered(response_bytes=ANSWERED.response_bytes, log_bytes=ANSWERED.log_bytes)
    return Forwarded(id=5, connection=connection, answered=answer)


async def test_a_call_goes_to_a_pod_and_to_another_when_that_is_lost(
    front: Front, said: list[ToFront], reports: Reports
) -> None:
    calls = front(Pods(channel(), channel()))
    calls.arrived(call())
    first = (await told(said, "forward")).forward
    assert (first.id, first.address, first.authority) == (5, "10.0.0.7:9446", "its-name")
    assert 0 < first.timeout_seconds <= 60
    calls.forwarded(lost(first.connection))
    second = (await told(said, "forward")).forward
    assert (second.id, second.connection != first.connection) == (5, True)
    calls.forwarded(lost(first.connection, "once more, and late"))
    calls.forwarded(answered(second.connection))
    await calls.finish(within=5)
    assert (said, calls.under_way) == ([], 0)
    assert (reports.codes, reports.sizes) == (["OK"], [(300, 400)])


async def test_a_pod_that_is_gone_is_disconnected_and_its_calls_go_elsewhere(front: Front, said: list[ToFront]) -> None:
    pods = channel(), channel()
    calls = front(Pods(*pods))
    calls.arrived(call())
    first = (await told(said, "forward")).forward
    await pods[0].close("it was deleted")
    assert (await told(said, "disconnect")).disconnect.connection == first.connection
    second = (await told(said, "forward")).forward
    assert second.connection != first.connection
    # Its answer was on its way: the caller has it, and the call is over.
    calls.forwarded(answered(first.connection))
    await calls.finish(within=5)
    assert said == []


async def test_an_answer_that_comes_between_two_pods(front: Front, said: list[ToFront]) -> None:
    pods = channel(), channel()
    calls = front(Pods(*pods))
    calls.arrived(call())
    first = (await told(said, "forward")).forward
    await pods[0].close("it was deleted")
    calls.forwarded(answered(first.connection))
    await calls.finish(within=5)
    await told(said, "disconnect")
    assert said == []


def promised_call(pod: WrapperChannel, *, timeout: float = 60) -> protocol.Call:
    destination, _ = pod.way
    asked = call(timeout=timeout)
    asked.is_promised, asked.connection = True, destination.connection
    return asked


async def test_a_call_that_was_over_before_it_was_heard_of_is_reported(said: list[ToFront], reports: Reports) -> None:
    heard: list[int] = []

    def served(connection: int) -> str:
        heard.append(connection)
        return POD

    promises = FrontPromises()
    promises.listen(served)
    terms = CallTerms(default_timeout=60, default_prefix="")
    reports.is_unseen = True
    calls = FrontCalls(
        said.append, functions=None, others=None, metrics=reports, spans=None, terms=terms, promises=promises
    )
    answer = protocol.Answered(response_bytes=12, log_bytes=3, seconds=0.25)
    with capture_logs() as lines:
        calls.served(protocol.Served(image=IMAGE, connection=4, message_bytes=300, answered=answer))
    assert (heard, said, calls.under_way) == ([4], [], 0)
    assert (reports.codes, reports.sizes) == (["OK"], [(300, 12)])
    (line,) = lines
    assert (line["image"], line["runtime"], line["seconds"], line["pod"]) == (IMAGE, "pod", 0.25, POD)


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("has_same_way", [True, False])
async def test_a_call_that_was_promised_its_pod_is_not_sent_again(
    front: Front, said: list[ToFront], reports: Reports, has_same_way: bool, is_early: bool
) -> None:
    """Nor if its pod has another connection meanwhile."""
    pod = channel()
    calls = front(Pods(pod))
    asked = promised_call(pod if has_same_way else channel())
    calls.arrived(asked)
    if not is_early:
        await asyncio.sleep(0.01)
    calls.forwarded(answered(asked.connection))
    await calls.finish(within=5)
    assert (said, reports.codes) == ([], ["OK"])


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_call_that_loses_its_promised_pod_goes_to_another(
    front: Front, said: list[ToFront], is_early: bool
) -> None:
    pods = channel(), channel()
    calls = front(Pods(*pods))
    asked = promised_call(pods[0])
    calls.arrived(asked)
    if not is_early:
        await asyncio.sleep(0.01)
    calls.forwarded(lost(asked.connection))
    second = (await told(said, "forward")).forward
    assert second.connection not in (0, asked.connection)
    calls.forwarded(answered(second.connection))
    await calls.finish(within=5)


async def test_a_promised_pod_that_is_not_used_any_more_ends_the_attempt(front: Front, said: list[ToFront]) -> None:
    pods = channel(), channel()
    calls = front(Pods(*pods))
    asked = promised_call(pods[0])
    calls.arrived(asked)
    await asyncio.sleep(0.01)
    await pods[0].close("it was deleted")
    assert (await told(said, "disconnect")).disconnect.connection == asked.connection
    second = (await told(said, "forward")).forward
    calls.forwarded(answered(second.connection))
    await calls.finish(within=5)


async def test_a_promised_call_ends_where_it_is_though_its_pod_is_being_deleted(
    front: Front, said: list[ToFront], reports: Reports
) -> None:
    pods = channel(), channel()
    calls = front(Pods(*pods))
    asked = promised_call(pods[0])
    calls.arrived(asked)
    # Before the runner has done anything for the call that it does not know of.
    await pods[0].close("it was deleted")
    await asyncio.sleep(0.01)
    assert [message.WhichOneof("message") for message in said] in ([], ["disconnect"])
    calls.forwarded(answered(asked.connection))
    await calls.finish(within=5)
    assert reports.codes == ["OK"]
    assert "forward" not in [message.WhichOneof("message") for message in said]


async def test_a_pod_that_retires_keeps_its_calls_until_it_is_gone(
    front: Front, said: list[ToFront], reports: Reports
) -> None:
    pods = channel(), channel()
    calls = front(Pods(*pods))
    asked = promised_call(pods[0])
    calls.arrived(asked)
    # The call has begun when the retirement does: both were under way in the same turn of the event loop.
    await asyncio.gather(pods[0].retire(), asyncio.sleep(0.01))
    await pods[0].retire()
    assert (said, reports.codes) == ([], [])
    await pods[0].close("it was deleted")
    assert (await told(said, "disconnect")).disconnect.connection == asked.connection
    second = (await told(said, "forward")).forward
    calls.forwarded(answered(second.connection))
    await calls.finish(within=5)
    assert reports.codes == ["OK"]


async def test_a_promised_call_is_as_old_as_the_front_says(front: Front, said: list[ToFront]) -> None:
    pod = channel()
    calls = front(Pods(pod))
    asked = promised_call(pod, timeout=30)
    asked.said_at = asyncio.get_running_loop().time() - 31
    calls.arrived(asked)
    assert (await told(said, "refuse")).refuse.code == 4, "its deadline has passed"


async def test_a_caller_that_has_its_answer_was_served_whatever_failed_here(front: Front, reports: Reports) -> None:
    class Failing:
        runtime = "pod"

        async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
            await asyncio.sleep(0.01)
            raise QueueFullError(IMAGE, waiting=3)

    calls = front(Failing())
    asked = promised_call(channel())
    calls.arrived(asked)
    calls.forwarded(answered(asked.connection))
    await calls.finish(within=5)
    assert (reports.codes, reports.sizes) == (["OK"], [(300, 400)])


async def test_a_call_that_is_heard_of_at_the_end_is_told_to_come_back(front: Front, said: list[ToFront]) -> None:
    pod = channel()
    calls = front(Pods(pod))
    calls.stop()
    calls.arrived(promised_call(pod))
    refuse = (await told(said, "refuse")).refuse
    assert (refuse.code, "shutting down" in refuse.message) == (14, True)


async def test_a_call_that_is_decided_otherwise_leaves_its_promised_pod(front: Front, said: list[ToFront]) -> None:
    other = channel()
    calls = front(Pods(other))
    asked = promised_call(channel())
    calls.arrived(asked)
    calls.forwarded(lost(asked.connection))
    forward = (await told(said, "forward")).forward
    assert forward.connection == other.way[0].connection
    calls.forwarded(answered(forward.connection))
    await calls.finish(within=5)


async def test_what_reached_its_promised_pod_is_lost_with_it(front: Front, said: list[ToFront]) -> None:
    calls = front(Pods(channel()))
    asked = promised_call(channel())
    calls.arrived(asked)
    trouble = protocol.Trouble(why="its connection broke in the middle of the call", reached=True)
    calls.forwarded(Forwarded(id=5, connection=asked.connection, trouble=trouble))
    refuse = (await told(said, "refuse")).refuse
    assert (refuse.code, "was lost: its connection broke" in refuse.message) == (14, True)


async def test_the_deadline_of_a_promised_call_is_kept_here(front: Front, said: list[ToFront]) -> None:
    pod = channel()
    calls = front(Pods(pod))
    calls.arrived(promised_call(pod, timeout=0.05))
    assert (await told(said, "refuse")).refuse.code == 4


async def test_an_error_is_refused(front: Front, said: list[ToFront]) -> None:
    calls = front(Pods(channel()))
    calls.arrived(call())
    forward = (await told(said, "forward")).forward
    status = status_of(QueueFullError(IMAGE, waiting=3))
    calls.forwarded(
        Forwarded(
            id=5,
            connection=forward.connection,
            status=protocol.Status(code=status.number, message=status.message, details=status.details),
        )
    )
    refuse = (await told(said, "refuse")).refuse
    assert (refuse.id, refuse.code, refuse.message) == (5, 8, status.message)


async def test_a_deadline_is_kept_here(front: Front, said: list[ToFront]) -> None:
    calls = front(Pods(channel()))
    calls.arrived(call(timeout=0.05))
    await told(said, "forward")
    assert (await told(said, "refuse")).refuse.code == 4


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_caller_that_goes_away(front: Front, said: list[ToFront], reports: Reports, at_once: bool) -> None:
    calls = front(Pods(channel()))
    calls.arrived(call())
    if not at_once:
        await told(said, "forward")
    calls.gone(protocol.Gone(id=5))
    await calls.finish(within=5)
    assert [message.WhichOneof("message") for message in said] == (["forward"] if at_once else [])
    assert reports.codes == ["CANCELLED"]


async def test_calls_that_are_here_at_the_end_are_told_to_come_back(front: Front, said: list[ToFront]) -> None:
    calls = front(Pods(channel()))
    calls.arrived(call())
    await told(said, "forward")
    calls.stop()
    refuse = (await told(said, "refuse")).refuse
    assert (refuse.code, "shutting down" in refuse.message) == (14, True)


async def test_a_defect_is_told_and_is_the_end_of_one_call_only(front: Front, said: list[ToFront]) -> None:
    class Broken:
        runtime = "pod"

        async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
            raise ZeroDivisionError

    calls = front(Broken())
    calls.arrived(call())
    refuse = (await told(said, "refuse")).refuse
    assert (refuse.code, "unexpected ZeroDivisionError in the runner" in refuse.message) == (13, True)

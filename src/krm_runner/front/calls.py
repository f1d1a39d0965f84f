"""What becomes of the calls that the front asks about, and the report of every call that it answers.

A call of a local function is handed back at once, with what to execute; the front does not ask for that image again.
Any other call is a task here for as long as the other runtimes have it: the front holds its message, and is told where
it goes, or what to refuse it with. Every call has its one log line and its metrics from here, whoever answered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from krm_runner.core.errors import EvaluationError, FunctionNotFoundError, ShuttingDownError, UnexpectedError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.front.ended import EndedCalls, span_of
from krm_runner.front.held_calls import HeldCalls
from krm_runner.front.local_functions import LocalFunction, LocalFunctions
from krm_runner.front.promises import FrontPromises
from krm_runner.rpc._generated.front_pb2 import Call, Ended, Forwarded, FromFront, Gone, Refuse, Run, Served, ToFront
from krm_runner.rpc.call_record import CallRecord, CallTerms, shown_image
from krm_runner.telemetry import internal_errors
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.tracing import CallSpans


class FrontCalls:
    """Knows the calls that the front asked about and that are not over."""

    def __init__(
        self,
        send: Callable[[ToFront], None],
        *,
        functions: LocalFunctions | None,
        others: Evaluator | None,
        metrics: EvaluationMetrics,
        spans: CallSpans | None,
        terms: CallTerms,
        promises: FrontPromises | None = None,
    ) -> None:
        """`functions` are asked first, `others` about every image that they do not have; either may be missing.

        `promises` know of calls that were served without a question.
        """
        self._send = send
        self._functions = functions
        self._others = others
        self._promises = promises
        self._metrics = metrics
        self._spans = spans
        self._terms = terms
        self._ended = EndedCalls(metrics, terms, spans)
        self._held = HeldCalls(send)
        self._executed: dict[int, CallRecord] = {}
        """Calls that were handed back to the front."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping = False

    @property
    def under_way(self) -> int:
        """How many there are."""
        return len(self._tasks) + len(self._executed)

    # --- what the front says --------------------------------------------------------------------------------------

    def arrived(self, call: Call) -> None:
        """A call whose image the front does not know."""
        self._metrics.arrived()
        started = min(call.said_at or self._now(), self._now())
        record = CallRecord(
            started=started, request_bytes=call.message_bytes, image=shown_image(call.image), span=span_of(call)
        )
        # One that has its pod came before what the configuration file says now.
        if not call.is_promised and self._hand_back(call, record):
            return
        # Before anything else is heard of it: the front may have sent it on, and have its answer, already.
        self._held.hold(call.id, is_promised=call.is_promised, connection=call.connection)
        task = asyncio.get_running_loop().create_task(self._serve(call, record), name=record.image)
        self._tasks[call.id] = task
        if self._stopping:
            _cancel(task)

    def ended(self, message: Ended) -> None:
        """A call that the front executed, or refused by itself, is over."""
        if not message.id:
            self._ended.report(message, unseen=True)
            return
        # Otherwise its caller went away meanwhile, and that was its end.
        if self._executed.pop(message.id, None) is not None:
            self._ended.report(message, unseen=False)

    def forwarded(self, message: Forwarded) -> None:
        """A message was sent on."""
        self._held.forwarded(message)

    def served(self, message: Served) -> None:
        """A call that nobody was asked about has its answer."""
        answered = message.answered
        record = CallRecord(
            started=0.0,
            request_bytes=message.message_bytes,
            image=shown_image(message.image),
            is_unseen=True,
            span=span_of(message),
        )
        record.seconds = answered.seconds
        runtime = pod = ""
        if self._promises is not None:
            runtime, pod = self._promises.runtime, self._promises.served(message.connection)
            self._metrics.waited(0.0, runtime=runtime)
        reference = self._terms.reference(message.image)
        record.request = EvaluationRequest(message.image, reference, b"", deadline=0.0, runtime=runtime)
        result = EvaluationResult(b"", b"", runtime, pod=pod)
        record.succeeded(result, response_bytes=answered.response_bytes, log_bytes=answered.log_bytes)
        self._report(record)

    def gone(self, message: Gone) -> None:
        """A caller went away, or its time is over."""
        task = self._tasks.get(message.id)
        if task is not None:
            _cancel(task)
        elif (record := self._executed.pop(message.id, None)) is not None:
            # It was on its way back to the front.
            record.went_away(self._now())
            self._report(record)

    def about(self, message: FromFront) -> Mapping[str, str]:
        """The image of the call that a message is about, for the log."""
        image = message.call.image or message.ended.image or message.served.image
        if not image and (task := self._tasks.get(message.forwarded.id or message.gone.id)) is not None:
            image = task.get_name()
        return {"image": shown_image(image)} if image else {}

    def give_up(self, call: Call, error: Exception) -> None:
        """Refuse a call that was not taken up, because of a bug."""
        record = CallRecord(started=self._now(), request_bytes=call.message_bytes, image=shown_image(call.image))
        self._refuse(call, record, UnexpectedError(record.image, cause=error))

    # --- the end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End every call that is still here; its caller is told that the runner is shutting down.

        Those that were handed back are the front's, which is told the same.
        """
        self._stopping = True
        for task in self._tasks.values():
            _cancel(task)

    async def finish(self, *, within: float) -> None:
        """Wait for calls whose answers are out already."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=within)

    async def close(self) -> None:
        """Nothing is left of any call; there may be nobody any more who could be told."""
        self._stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            _cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one call -------------------------------------------------------------------------------------------------

    def _hand_back(self, call: Call, record: CallRecord) -> bool:
        """Whether it is settled already: executed by the front, or refused."""
        try:
            record.request = self._read(call, record)
            function = self._find(record.request)
            if function is None and self._others is not None:
                return False
            self._send(self._run(call, function))
            self._executed[call.id] = record
        except Exception as error:
            self._refuse(call, record, error)
            self._report(record)
        return True

    async def _serve(self, call: Call, record: CallRecord) -> None:
        try:
            await self._answer(call, record)
        except asyncio.CancelledError:
            if self._has_answer(call, record):
                pass
            elif self._stopping:
                self._refuse(call, record, ShuttingDownError(record.image))
            else:
                record.went_away(self._now())
        except Exception as error:
            if not self._has_answer(call, record):
                self._refuse(call, record, error)
        finally:
            del self._tasks[call.id]
            self._held.release(call.id)
            with internal_errors.contained("call", image=record.image):
                self._report(record)

    async def _answer(self, call: Call, record: CallRecord) -> None:
        request = record.request = record.request or self._read(call, record)
        if self._others is None:
            raise FunctionNotFoundError(call.image)
        request.held = self._held.of(call.id)
        result = await self._others.evaluate(request)
        passed_on = result.passed_on
        if passed_on is None:
            raise RuntimeError(f"the {result.runtime} runtime does not know of held calls")
        record.succeeded(result, response_bytes=passed_on.response_bytes, log_bytes=passed_on.log_bytes)
        record.seconds = passed_on.seconds

    def _has_answer(self, call: Call, record: CallRecord) -> bool:
        """Whether its caller was answered, whatever happened here before that was heard."""
        answered = self._held.of(call.id).answered
        if answered is None:
            return False
        result = EvaluationResult(b"", b"", record.runtime)
        record.succeeded(result, response_bytes=answered.response_bytes, log_bytes=answered.log_bytes)
        record.seconds = answered.seconds
        return True

    def _read(self, call: Call, record: CallRecord) -> EvaluationRequest:
        remaining = call.timeout_seconds if call.HasField("timeout_seconds") else None
        return EvaluationRequest(
            image=call.image,
            reference=self._terms.reference(call.image),
            resource_list=b"",
            deadline=self._terms.deadline(record.started, remaining),
        )

    def _find(self, request: EvaluationRequest) -> LocalFunction | None:
        if self._functions is None:
            return None
        function = self._functions.find(request.reference)
        if function is not None:
            request.runtime = self._functions.runtime
        return function

    def _run(self, call: Call, function: LocalFunction | None) -> ToFront:
        if function is None:
            raise FunctionNotFoundError(call.image)
        return ToFront(run=Run(id=call.id, function=function.name, path=function.path, standby=function.standby))

    def _refuse(self, call: Call, record: CallRecord, error: Exception) -> None:
        if not isinstance(error, EvaluationError):
            internal_errors.report("call", error, image=record.image)
            error = UnexpectedError(record.image, cause=error)
        status = record.refused(error)
        refuse = Refuse(id=call.id, code=status.number, message=status.message, details=status.details)
        self._send(ToFront(refuse=refuse))

    def _report(self, record: CallRecord) -> None:
        record.report(self._metrics, self._now(), self._spans)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _cancel(task: asyncio.Task[None]) -> None:
    """Not before it has begun: it would be gone without a word."""
    asyncio.get_running_loop().call_soon(task.cancel)

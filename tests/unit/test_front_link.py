"""The front's messages: cut out of any portions, and read into our own words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import image_ref
from krm_runner.core.function_table import FunctionTable
from krm_runner.core.held_call import NoAnswer, PassedOn, ReturnedStatus
from krm_runner.front.ended import facts_of
from krm_runner.front.held_calls import outcome_of
from krm_runner.front.link import MAX_MESSAGE_BYTES, Frames, LinkError, frame
from krm_runner.front.local_functions import LocalFunction, LocalFunctions
from krm_runner.rpc._generated import front_pb2 as protocol
from krm_runner.rpc._generated.front_pb2 import Ended, Forwarded, FromFront


@given(st.lists(st.text(max_size=300), max_size=8), st.data())
def test_messages_come_out_as_they_went_in_however_they_are_cut(images: list[str], data: st.DataObject) -> None:
    sent = [FromFront(call=protocol.Call(id=number, image=image)) for number, image in enumerate(images, start=1)]
    stream = b"".join(frame(message) for message in sent)
    frames = Frames()
    received: list[FromFront] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += [FromFront.FromString(content) for content in frames.feed(stream[:size])]
        stream = stream[size:]
    assert received == sent


def test_the_largest_message_and_one_that_is_larger() -> None:
    largest = bytes(MAX_MESSAGE_BYTES)
    frames = Frames()
    assert frames.feed(len(largest).to_bytes(4) + largest[:-1]) == []
    assert frames.feed(largest[-1:] + bytes(4)) == [largest, b""]
    with pytest.raises(LinkError, match=f"a message of {MAX_MESSAGE_BYTES + 1} bytes"):
        frames.feed((MAX_MESSAGE_BYTES + 1).to_bytes(4))


def test_what_became_of_a_forward() -> None:
    answered = Forwarded(id=1, answered=protocol.Answered(response_bytes=7, log_bytes=3, seconds=0.5))
    assert outcome_of(answered) == PassedOn(response_bytes=7, log_bytes=3, seconds=0.5)
    status = Forwarded(id=1, status=protocol.Status(code=13, message="oh no", details=b"more"))
    assert outcome_of(status) == ReturnedStatus(13, "oh no", b"more")
    trouble = Forwarded(id=1, trouble=protocol.Trouble(why="gone", is_unnamed=True))
    assert outcome_of(trouble) == NoAnswer("gone", reached=False, is_unnamed=True)


def test_the_facts_of_a_log_line_are_in_its_order() -> None:
    ok = Ended(code="OK", queue_seconds=0.5, facts={"log_bytes": "3", "exit": "0"})
    assert list(facts_of(ok).items()) == [("queue_seconds", 0.5), ("exit", 0), ("log_bytes", 3)]
    failed = Ended(code="INTERNAL", queue_seconds=0.5, facts={"exit": "7", "b": "1", "a": "2"}, error="x" * 5000)
    facts = facts_of(failed)
    assert list(facts) == ["a", "b", "exit", "error"]
    assert (facts["exit"], facts["a"]) == (7, "2")
    assert len(str(facts["error"])) < 4500


def test_local_functions() -> None:
    first = image_ref.parse("example.com/first:v1")
    table = FunctionTable({first.canonical: "first"}, standby={"first": 3, "second": None})
    functions = LocalFunctions(lambda: table, directory=Path("/functions"), default_standby=1)
    assert functions.find(first) == LocalFunction("first", b"/functions/first", 3)
    assert functions.find(image_ref.parse("example.com/other:v1")) is None
    assert dict(functions.forget().forget.standby) == {"first": 3, "second": 1}

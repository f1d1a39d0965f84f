"""What gRPC says about broken connections, as it was seen to say it, and what a person is told."""

from __future__ import annotations

import grpc
import pytest

from krm_runner.rpc.connection_trouble import trouble_of

_NOT_CONNECTED = "failed to connect to all addresses; last error: "


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            f"{_NOT_CONNECTED}UNKNOWN: ipv4:127.0.0.1:33595: Failed to connect to remote host: Connection refused",
            "its port refuses connections",
        ),
        (
            f"{_NOT_CONNECTED}UNKNOWN: ipv6:%5B::1%5D:50279: Failed to connect to remote host: Connection refused",
            "its port refuses connections",
        ),
        (
            f"{_NOT_CONNECTED}UNKNOWN: ipv4:127.0.0.1:46721: Failed to connect to remote host: connect() timed out",
            "it does not accept connections",
        ),
        (
            f"{_NOT_CONNECTED}UNKNOWN: ipv4:127.0.0.1:59677: tcp handshaker shutdown",
            "it does not accept connections",
        ),
        (
            f"{_NOT_CONNECTED}UNKNOWN: ipv4:127.0.0.1:41157: "
            "connection attempt timed out before receiving SETTINGS frame",
            "it accepts connections, but nothing comes back",
        ),
        (
            f"{_NOT_CONNECTED}INTERNAL: ipv4:127.0.0.1:39467: Failed parsing HTTP/2 (Expected SETTINGS frame as the "
            "first frame, got frame type 80) (Trying to connect an http1.x server (HTTP status 400))",
            "what answers on its port is no wrapper server",
        ),
        (
            f"{_NOT_CONNECTED}UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: No route to host",
            "there is no way to its address",
        ),
        (f"{_NOT_CONNECTED}UNKNOWN: ipv4:127.0.0.1:1: something new", "no connection: something new"),
        (
            "errors resolving f.ns.svc.cluster.local.:9446: [field:hostname lookup error:address lookup failed for "
            "f.ns.svc.cluster.local:9446: Domain name not found]",
            "the name f.ns.svc.cluster.local is not known",
        ),
        ("DNS resolution failed for f.ns:9446: whatever", "the name f.ns is not known"),
        ("Stream removed (GOAWAY received; Error code: 0; Debug Text: why)", "it takes no calls any more"),
        (
            "Stream removed (RST_STREAM (Received RST_STREAM with error code 7))",
            "it takes no calls any more",
        ),
        (
            "upstream connect error or disconnect/reset before headers. reset reason: connection failure",
            "the proxy before it has no connection to it",
        ),
        ("no healthy upstream", "the proxy before it has no connection to it"),
    ],
)
def test_calls_that_never_left(text: str, why: str) -> None:
    trouble = trouble_of(grpc.StatusCode.UNAVAILABLE, text)
    assert trouble is not None
    assert (trouble.why, trouble.reached) == (why, False)


@pytest.mark.parametrize(
    ("code", "text", "why"),
    [
        ("UNAVAILABLE", "Stream removed (Socket closed)", "its connection broke in the middle of the call"),
        (
            "UNAVAILABLE",
            "Stream removed (Socket closed (GOAWAY received; Error code: 0; Debug Text: why))",
            "its connection broke in the middle of the call",
        ),
        (
            "UNAVAILABLE",
            "Stream removed (ping timeout)",
            "it does not answer any more, or the network to it is gone",
        ),
        ("INTERNAL", "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))", "the call was broken off"),
        ("CANCELLED", "Stream removed (RST_STREAM (Received RST_STREAM with error code 8))", "the call was broken off"),
        (
            "UNKNOWN",
            "Stream removed (something new)",
            "its connection broke in the middle of the call (something new)",
        ),
        (
            "UNAVAILABLE",
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
        ),
        (
            "UNAVAILABLE",
            "Received http2 header with status: 503",
            "something before it answered with HTTP status 503",
        ),
        ("UNAVAILABLE", "something new", "something new"),
        ("UNAVAILABLE", "", "it is not available"),
    ],
)
def test_calls_that_may_have_come_to_the_function(code: str, text: str, why: str) -> None:
    trouble = trouble_of(grpc.StatusCode[code], text)
    assert trouble is not None
    assert (trouble.why, trouble.reached) == (why, True)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("UNIMPLEMENTED", "unknown method /x.Y/Z"),
        ("UNIMPLEMENTED", "Received http2 header with status: 404"),
        ("UNKNOWN", "No status received"),
        ("RESOURCE_EXHAUSTED", "Stream removed (CLIENT: Received message larger than max (67 vs. 20))"),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded"),
    ],
)
def test_what_is_no_trouble_with_the_connection(code: str, text: str) -> None:
    assert trouble_of(grpc.StatusCode[code], text) is None

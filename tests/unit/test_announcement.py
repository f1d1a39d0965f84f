"""What a pod says of itself: only in one form, and only believed by whoever gave it its word."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import pytest

from krm_runner.core.announcement import MAX_BYTES, Announcement, parse, plain_ip
from krm_runner.core.errors import ConfigurationError
from krm_runner.pods.announcements import hear_announcements

POD = "set-namespace-v0-4-5-1-84c693a2"
WORD = "Zm9yIHRoZSB0ZXN0c18t"


def test_what_a_pod_is_told_is_what_is_understood() -> None:
    announcement = Announcement(POD, WORD)
    address, _, message = announcement.variable("10.0.0.7:9448").partition(" ")
    assert address == "10.0.0.7:9448"
    assert parse(message.encode()) == announcement


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"/",
        POD.encode(),
        f"{POD}/".encode(),
        f"{POD}/short".encode(),
        f"{POD}/{WORD}\n".encode(),
        f"{POD}/{WORD}/{WORD}".encode(),
        f"../{POD}/{WORD}".encode(),
        f"{POD.upper()}/{WORD}".encode(),
        f"{'a' * MAX_BYTES}/{WORD}".encode(),
        b"\xff\xfe" * 20,
    ],
)
def test_nothing_else_is_an_announcement(datagram: bytes) -> None:
    assert parse(datagram) is None


def test_only_the_word_of_the_start_counts() -> None:
    announcement = Announcement(POD, WORD)
    assert announcement.is_of(WORD)
    for other in ("", WORD[:-1], WORD.lower(), WORD + "A"):
        assert not announcement.is_of(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.244.0.5", "10.244.0.5"),
        ("::ffff:10.244.0.5", "10.244.0.5"),
        ("FD00:0::5", "fd00::5"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
        ("pod", ""),
    ],
)
def test_an_address_has_one_spelling(text: str, expected: str) -> None:
    assert plain_ip(text) == expected


async def test_they_are_heard_with_where_they_come_from() -> None:
    heard: asyncio.Queue[tuple[Announcement, str]] = asyncio.Queue()
    async with hear_announcements(
        "127.0.0.1", 0, lambda announcement, ip: heard.put_nowait((announcement, ip))
    ) as address:
        host, _, port = address.rpartition(":")
        assert ip_address(host).is_loopback
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pod:
            for message in (b"nonsense", b"", f"{POD}/{WORD}".encode()):
                pod.sendto(message, (host, int(port)))
        async with asyncio.timeout(10):
            assert await heard.get() == (Announcement(POD, WORD), "127.0.0.1")
    assert heard.empty()


async def test_an_address_that_is_not_ours_is_one_line() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:9448 \(--announce-address\): "):
        async with hear_announcements("192.0.2.1", 9448, lambda _announcement, _ip: None):
            pass

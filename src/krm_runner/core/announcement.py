"""What a pod says of itself the moment it serves, so that nobody waits for the kubelet to have looked.

Only the kubelet's status has a pod's address, and it is written up to a second after the container runs. So the wrapper
server sends the runner that started it a datagram: where that comes from is the address. A function shares its pod with
the wrapper and may send the same, but only of its own pod: each start has a word of its own that nobody else knows.
What is announced counts until Kubernetes says it, too; if that is something else, Kubernetes is right.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass

ANNOUNCE_VARIABLE = "KRM_RUNNER_ANNOUNCE"
MAX_BYTES = 512
_FORM = re.compile(rb"([a-z0-9.-]{1,253})/([A-Za-z0-9_-]{16,128})")


@dataclass(frozen=True, slots=True)
class Announcement:
    """That a pod serves."""

    pod: str
    word: str

    def variable(self, address: str) -> str:
        """What the wrapper server is told: where to send which text."""
        return f"{address} {self.pod}/{self.word}"

    def is_of(self, word: str) -> bool:
        """Whether it comes from the pod that was given this word."""
        return bool(word) and hmac.compare_digest(self.word, word)


def parse(datagram: bytes) -> Announcement | None:
    """None when it is something else."""
    found = _FORM.fullmatch(datagram) if len(datagram) <= MAX_BYTES else None
    return Announcement(found[1].decode(), found[2].decode()) if found else None


def plain_ip(text: str) -> str:
    """One spelling for each address, and none for what is no address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)

"""Pod ids: the name of a function's pod and of its Service, and the value of the label that joins the two.

Requirements:
- for an ordinary image, what Porch's users know: the repository's last part (`_` as `-`), the tag without dots, a
  number, the first 8 digits of the digest: `set-namespace-v041-1-0f3b5e2a`;
- for every image a DNS-1035 name of at most 63 characters, which is also a valid label value. What does not fit (a
  reference by digest, upper case, dots, a digit in front, sheer length) is mended and cut, and a hash of the whole
  reference takes the place of what was lost;
- the same image, digest and number always give the same id, so that runners that start together name one pod.

An ordinary id says nothing of the registry, so two images may have the same one: whoever finds a pod under its name
asks what the pod serves (`pod_facts`) before it is used, and takes the next number when that is something else.
"""

from __future__ import annotations

import hashlib
import re

from krm_runner.core.image_ref import ImageRef

MAX_LENGTH = 63
_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_UNFIT = re.compile(r"[^a-z0-9]+")
_DIGITS = 8


def pod_id(reference: ImageRef, digest: str, number: int) -> str:
    """The id of the `number`th pod of an image that was resolved to `digest`."""
    ending = f"{number}-{digest.partition(':')[2][:_DIGITS]}"
    name = reference.repository.rpartition("/")[2].replace("_", "-")
    tag = "" if reference.digest else reference.tag.replace(".", "")
    ordinary = f"{name}-{tag}-{ending}"
    if tag and is_pod_id(ordinary):
        return ordinary
    ending = f"{_hash(f'{reference.canonical} {digest}')}-{ending}"
    words = _mended(f"{name}-{tag}")[: MAX_LENGTH - 1 - len(ending)].rstrip("-")
    return f"{words}-{ending}"


def is_pod_id(text: str) -> bool:
    """Whether this can be the name of a Service, and so of everything else."""
    return len(text) <= MAX_LENGTH and _DNS_1035.fullmatch(text) is not None


def _mended(text: str) -> str:
    words = _UNFIT.sub("-", text.lower()).strip("-")
    return words if words[:1].isalpha() else f"fn-{words}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

"""How much memory a call of a function will take, by what calls of it took so far.

Functions read their whole input, and hold it as objects: megabytes of YAML become a hundred times as much. So what is
known is kept by the size of the input, in classes of which each is twice the one before, and grows in proportion within
one. The highest counts at once, a lower one slowly: an estimate that is too high makes a call wait for a moment, one
that is too low may be the end of the whole container.

A class of which nothing is known has a cautious guess, bounded by what is known of smaller and larger inputs.
"""

from __future__ import annotations

from collections import OrderedDict

_GUESS_WITHOUT_INPUT = 30_000_000
"""An interpreter with its libraries."""
_GUESS_PER_BYTE = 100
"""The catalog's set-namespace takes 130 with much input, one that copies takes none."""
_WEIGHT_OF_THE_NEWEST = 0.2
_MAX_REMEMBERED = 1000


class MemoryForecast:
    """Of all functions."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[int, tuple[int, float]]] = OrderedDict()
        """By function and class: the size of an input, and what it takes."""

    def expected(self, function: str, size: int) -> int:
        """Bytes that a call with an input of this size will take."""
        guess: float = _GUESS_WITHOUT_INPUT + _GUESS_PER_BYTE * size
        seen = self._seen.get(function)
        if seen is None:
            return int(guess)
        own = seen.get(_class_of(size))
        if own is not None:
            return _in_proportion(own, size)
        guess = min([guess, *(peak for seen_size, peak in seen.values() if seen_size > size)])
        guess = max([guess, *(peak for seen_size, peak in seen.values() if seen_size < size)])
        return int(guess)

    def learn(self, function: str, size: int, peak: int) -> None:
        """A call with an input of this size took so much at its height."""
        seen = self._seen.pop(function, {})
        self._seen[function] = seen
        own = seen.get(_class_of(size))
        before = peak if own is None else _in_proportion(own, size)
        if peak >= before:
            seen[_class_of(size)] = (size, peak)
        elif own is not None:
            # Of the larger one: a smaller input says little of what that takes.
            seen[_class_of(size)] = (max(size, own[0]), before + (peak - before) * _WEIGHT_OF_THE_NEWEST)
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen.popitem(last=False)

    def was_killed(self, function: str, size: int, most: int) -> None:
        """A call was killed, most likely because there was no such memory; more than `most` is not to be had."""
        expected = self.expected(function, size)
        self.learn(function, size, min(2 * expected, max(expected, most)))


def _class_of(size: int) -> int:
    return size.bit_length()


def _in_proportion(seen: tuple[int, float], size: int) -> int:
    """What a larger input of the same class takes; a smaller one may take as much."""
    seen_size, peak = seen
    return int(peak * max(1.0, size / max(1, seen_size)))

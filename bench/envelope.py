"""The envelope check against a full parse of the same bytes, in one run: how many times faster it is."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import yaml

from bench.inputs import generated
from krm_runner.core import resource_list


def best_of(times: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest run: noise only ever adds."""
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


def main() -> None:
    """Print a table."""
    print("envelope check               glance       events  PyYAML (C)   PyYAML / glance")
    for size in (2_000, 100_000, 5_000_000):
        block = generated(size)
        late = block.replace(b"kind: ResourceList\n", b"", 1) + b"kind: ResourceList\n"
        for name, data in (("kind first", block), ("kind last", late)):
            runs = 3 if size < 1_000_000 else 1
            glance = best_of(20, functools.partial(resource_list.recognise, data))
            events = best_of(runs, functools.partial(resource_list.parse, data))
            full = best_of(runs, functools.partial(yaml.load, data, Loader=yaml.CSafeLoader))
            print(
                f"{len(data):>9} bytes, {name:<10} {glance * 1e3:8.2f} ms {events * 1e3:9.1f} ms "
                f"{full * 1e3:8.1f} ms {full / glance:12.0f} x"
            )


if __name__ == "__main__":
    main()

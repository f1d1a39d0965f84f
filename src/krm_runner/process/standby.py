"""Processes that wait for their input: the event loop's side of `core.standby`.

They are started like those of a call, hold no place, and are watched: one that ends or writes before it was given its
input is ended with its function's others, and the log says once why that function has none any more. Whoever takes one
has it alone, with its pipes and with the duty to end it. Which to start, and when, is not decided here.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from krm_runner.core.standby import Identity, StandbyLimits, StandbyPolicy
from krm_runner.process.child import Child, Pipes
from krm_runner.process.spawn_threads import SpawnThreads
from krm_runner.process.watcher import READABLE, Watcher

_log = structlog.get_logger("krm_runner.exec")

_ANSWER_LEAVES = 0.001
"""So long after a call was answered the answer has left, and what is started takes nothing from it."""

_DYING_LOOKS, _DYING_INTERVAL = 50, 0.002
"""How long a killed process is waited for."""

_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class WaitingProcess:
    """A process that was started, or is about to be, before there is an input for it."""

    def __init__(self, function: str, identity: Identity) -> None:
        """OSError when there are too many open files."""
        self.function = function
        self.identity = identity
        self.pipes = Pipes()
        self._child: Child | None = None
        self._poll = select.poll()

    @property
    def pid(self) -> int | None:
        """None before it is known."""
        return None if self._child is None else self._child.pid

    @property
    def child(self) -> Child:
        """Of one that was started."""
        if self._child is None:
            raise RuntimeError(f"no process of {self.function} yet")
        return self._child

    def started(self, pid: int | Exception) -> None:
        """The process runs; or the reason why not is raised, and nothing is left open."""
        self.pipes.close_childs_ends(but_stdin=True)
        try:
            if isinstance(pid, Exception):
                raise pid
            child = Child(pid, self.pipes, function=self.function, keeps_its_stdin=True)
        except Exception:  # whatever it is: the pipes are nobody's now, and it goes on its way
            self.pipes.close_our_ends()
            os.close(self.pipes.childs_stdin)
            raise
        self._child = child
        for descriptor in self.watched:
            self._poll.register(descriptor, select.POLLIN)

    @property
    def watched(self) -> tuple[int, int, int]:
        """Where it can be seen what it does: the end, stdout, stderr."""
        return self.child.pidfd, self.child.stdout, self.child.stderr

    def early_act(self) -> str:
        """What it did before its input came, in words for the log; nothing, if it is good."""
        for descriptor, events in self._poll.poll(0):
            if events & select.POLLIN:
                return self.act_on(descriptor)
        return ""

    def act_on(self, descriptor: int) -> str:
        """What it means that one can read from this descriptor of a process that waits."""
        what = dict(zip(self.watched, ("ended", "wrote to stdout", "wrote to stderr"), strict=True))[descriptor]
        return f"it {what} before its input came"


class Standby:
    """Starts, watches, hands out and ends them, as the policy says."""

    def __init__(
        self,
        limits: StandbyLimits,
        *,
        threads: SpawnThreads,
        watcher: Watcher,
        busy: Callable[[], int],
        queued: Callable[[], int],
    ) -> None:
        """`busy` and `queued` count the processes with calls, and the calls that wait for one."""
        self._policy: StandbyPolicy[WaitingProcess] = StandbyPolicy(limits)
        self._threads = threads
        self._watcher = watcher
        self._busy = busy
        self._queued = queued
        self._commands: dict[str, Sequence[bytes]] = {}
        self._alive: set[WaitingProcess] = set()
        self._waiting: frozenset[WaitingProcess] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    @property
    def pids(self) -> set[int | None]:
        """Of all that live or are not reaped yet; None for one whose pid is not known yet."""
        return {process.pid for process in self._alive}

    def waiting(self) -> dict[str, int]:
        """How many wait, by function. May be asked from any thread."""
        counts = dict.fromkeys(tuple(self._commands), 0)
        for process in self._waiting:
            counts[process.function] = counts.get(process.function, 0) + 1
        return counts

    def memory(self) -> dict[str, int]:
        """Bytes of memory that they share with no other process, by function. May be asked from any thread."""
        sizes = dict.fromkeys(tuple(self._commands), 0)
        for process in self._waiting:
            sizes[process.function] = sizes.get(process.function, 0) + _private_memory(process.pid)
        return sizes

    def called(self, argv: Sequence[bytes], *, function: str, wanted: int) -> None:
        """A call of this function is about to be answered: have so many ready for the next ones."""
        if self._is_over or (not wanted and function not in self._commands):
            return
        self._commands[function] = argv
        identity = identity_of(argv[0]) if self._policy.marked(function) is not None else None
        now = asyncio.get_running_loop().time()
        self._end_all(self._policy.called(function, wanted=wanted, identity=identity, now=now))
        self._look_soon()

    def configure(self, wanted: Callable[[str], int]) -> None:
        """The numbers changed."""
        for function in self._policy.functions():
            self._end_all(self._policy.want(function, wanted(function)))

    def place_is_free(self) -> None:
        """Fewer processes have calls than before."""
        if self._commands:
            self._look_soon()

    def take(self, argv: Sequence[bytes], *, function: str) -> WaitingProcess | None:
        """A process for a call that has its place, and is ready to give it its input; the caller's from now on."""
        if not self._policy.has_waiting(function):
            return None
        taken = self._policy.take(function, identity=identity_of(argv[0]))
        self._end_all(taken.ended)
        process = taken.process
        if process is None:
            return None
        self._waiting -= {process}
        if act := process.early_act():
            self.spoiled(process, act)
            self._end(process)
            return None
        self._alive.discard(process)
        return process

    def spoiled(self, process: WaitingProcess, act: str) -> None:
        """A function is of no use in standby, as one of its processes showed."""
        if self._policy.marked(process.function) != process.identity:
            _log.info("function not kept in standby", function=process.function, why=act)
        self._end_all(self._policy.mark(process.function, process.identity))

    async def give_way(self) -> bool:
        """End all that wait, since a call lacks what they hold; whether there were any, and they are gone now."""
        ended = self._policy.give_way()
        self._end_all(ended)
        for _ in range(_DYING_LOOKS):
            if self._alive.isdisjoint(ended):
                break
            await asyncio.sleep(_DYING_INTERVAL)
        return bool(ended)

    def end(self) -> None:
        """End all, for good."""
        self._is_over = True
        self._end_all(self._policy.end())
        self._commands.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def kill_all(self) -> None:
        """SIGKILL to all, and nothing else."""
        for process in self._alive:
            if process.pid is not None:
                process.child.kill()

    def _look_soon(self) -> None:
        """Unless calls wait: then it would be in vain, and the last of them ends like this one."""
        if not self._queued():
            loop = asyncio.get_running_loop()
            self._look_at(loop, loop.time() + _ANSWER_LEAVES)

    def _look_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        """Look again then, or earlier."""
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        self._end_all(self._policy.expire(now))
        start = self._policy.next_start(busy=self._busy(), queued=self._queued(), now=now)
        if start is not None:
            self._end_all(start.ended)
            self._start(loop, start.function)
        when = self._policy.next_event(now)
        if when is not None:
            self._look_at(loop, when)

    def _start(self, loop: asyncio.AbstractEventLoop, function: str) -> None:
        argv = self._commands[function]
        # Before the start: a file that is replaced in between makes a process that no call will get.
        identity = identity_of(argv[0])
        try:
            if identity is None:
                raise FileNotFoundError(os.fsdecode(argv[0]))
            process = WaitingProcess(function, identity)
        except OSError as error:
            self._start_failed(loop, function, error)
            return
        self._alive.add(process)
        self._threads.start(argv, process.pipes, partial(self._on_started, loop, process))

    def _on_started(self, loop: asyncio.AbstractEventLoop, process: WaitingProcess, pid: int | Exception) -> None:
        try:
            process.started(pid)
        except Exception as error:  # raised here it would leave a start under way for ever; a call will say it better
            self._alive.discard(process)
            self._start_failed(loop, process.function, error)
            return
        if self._is_over:
            self._end(process)
            return
        try:
            for descriptor in process.watched:
                self._watcher.watch(descriptor, READABLE, partial(self._on_act, process, descriptor))
        except OSError as error:
            self._end(process)
            self._start_failed(loop, process.function, error)
            return
        now = loop.time()
        if self._policy.started(process.function, process, identity=process.identity, now=now):
            self._waiting |= {process}
            _log.debug("process in standby", function=process.function, pid=process.pid)
        else:
            self._end(process)
        self._look_at(loop, now)

    def _start_failed(self, loop: asyncio.AbstractEventLoop, function: str, error: Exception) -> None:
        _log.debug("no process in standby", function=function, error=str(error))
        self._policy.start_failed(function)
        self._look_at(loop, loop.time())

    def _on_act(self, process: WaitingProcess, descriptor: int, events: int) -> None:
        if events & READABLE:
            self.spoiled(process, process.act_on(descriptor))
        else:
            # It closed its output and waits: that is its own business.
            self._watcher.forget(descriptor)

    def _end_all(self, processes: Sequence[WaitingProcess]) -> None:
        for process in processes:
            self._end(process)

    def _end(self, process: WaitingProcess) -> None:
        self._waiting -= {process}
        for descriptor in process.watched:
            self._watcher.forget(descriptor)
        process.child.dismantle(asyncio.get_running_loop(), partial(self._alive.discard, process))


def identity_of(executable: bytes) -> Identity | None:
    """Of the file behind a path; None when there is none."""
    try:
        status = os.stat(executable)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _private_memory(pid: int | None) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _size, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE_SIZE

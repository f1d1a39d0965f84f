"""Starting a process with glibc's posix_spawn, through ctypes.

The standard library's ways are too slow or too narrow here (docs/adr/0002): ctypes releases the interpreter while
the child is made, and the attributes below are all that a function must find on its first instruction: a process
group of its own, default signal dispositions and an empty mask (CPython ignores SIGPIPE; a function must not), and
no descriptor but 0, 1 and 2. A moment later it is nicer than the runner: when all CPUs are busy, whoever feeds
functions, takes their answers and refuses what is too much must not stand in line behind them (docs/adr/0013).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
from collections.abc import Mapping, Sequence

from krm_runner.core.errors import ServeError

_SETPGROUP = 0x02
_SETSIGDEF = 0x04
_SETSIGMASK = 0x08
_PR_SET_CHILD_SUBREAPER = 36
_NICER_BY = 10

# Larger than the types of any glibc: 336 bytes, 80 bytes and 128 bytes on x86-64.
_ATTRIBUTES_SIZE, _FILE_ACTIONS_SIZE, _SIGSET_SIZE = 512, 256, 128


class Spawner:
    """Starts processes in one fixed environment. Thread-safe; `spawn` is meant to be called in a thread."""

    def __init__(self, environment: Mapping[bytes, bytes]) -> None:
        self._libc = _load_libc()
        # What takes no time keeps the interpreter's lock: letting it go and fighting for it costs more than the call.
        self._quick = ctypes.PyDLL(None)
        self._environment = _string_array([key + b"=" + value for key, value in environment.items()])
        self._attributes = self._make_attributes()
        self._niceness = os.getpriority(os.PRIO_PROCESS, 0) + _NICER_BY

    def become_subreaper(self) -> None:
        """Orphans of the processes started here become children of this process, so that it can reap them."""
        if self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise ServeError("prctl(PR_SET_CHILD_SUBREAPER) failed: orphans of functions could not be reaped")

    def spawn(self, argv: Sequence[bytes], *, stdin: int, stdout: int, stderr: int) -> int:
        """The pid of a new process, leader of its own group; OSError when it cannot be started."""
        actions = ctypes.create_string_buffer(_FILE_ACTIONS_SIZE)
        _check(self._quick.posix_spawn_file_actions_init(actions))
        try:
            for target, source in enumerate((stdin, stdout, stderr)):
                _check(self._quick.posix_spawn_file_actions_adddup2(actions, source, target))
            _check(self._quick.posix_spawn_file_actions_addclosefrom_np(actions, 3))
            pid = ctypes.c_int()
            arguments = _string_array(argv)
            _check(
                self._libc.posix_spawn(
                    ctypes.byref(pid), argv[0], actions, self._attributes, arguments, self._environment
                )
            )
            # It may have ended; or the kernel says no, and it runs as it is.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PGRP, pid.value, self._niceness)
            return pid.value
        finally:
            self._quick.posix_spawn_file_actions_destroy(actions)

    def _make_attributes(self) -> ctypes.Array[ctypes.c_char]:
        attributes = ctypes.create_string_buffer(_ATTRIBUTES_SIZE)
        _check(self._libc.posix_spawnattr_init(attributes))
        every_signal = ctypes.create_string_buffer(_SIGSET_SIZE)
        no_signal = ctypes.create_string_buffer(_SIGSET_SIZE)
        self._libc.sigfillset(every_signal)
        self._libc.sigemptyset(no_signal)
        for unchangeable in (signal.SIGKILL, signal.SIGSTOP):
            self._libc.sigdelset(every_signal, int(unchangeable))
        _check(self._libc.posix_spawnattr_setsigdefault(attributes, every_signal))
        _check(self._libc.posix_spawnattr_setsigmask(attributes, no_signal))
        _check(self._libc.posix_spawnattr_setpgroup(attributes, 0))
        flags = ctypes.c_short(_SETPGROUP | _SETSIGDEF | _SETSIGMASK)
        _check(self._libc.posix_spawnattr_setflags(attributes, flags))
        return attributes


def initial_environment() -> dict[bytes, bytes]:
    """The environment that this process was started with, without what CPython added to it (LC_CTYPE)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {key: value for key, equals, value in (entry.partition(b"=") for entry in entries) if equals}


def _load_libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "posix_spawn_file_actions_addclosefrom_np"):
        raise ServeError("krm-runner needs glibc 2.34 or newer (Debian 12, Ubuntu 22.04, RHEL 9)")
    return libc


def _string_array(strings: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(strings) + 1))(*strings, None)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error), errno.errorcode.get(error))

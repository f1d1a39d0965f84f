#!/usr/bin/env python3
"""A front that a test plays: speaks proto/front.proto to the runner, and does nothing by itself.

Started as `krm-front LISTEN_FD LINK_FD`. It connects to the Unix socket that PLAYED_FRONT names and passes on: every
message of the runner goes there, and what the test sends goes to the runner, both framed as on the link. When the test
closes its end it exits with the code that PLAYED_FRONT_EXIT has, as a front does that was told to drain; when the
runner closes the link, it ends as well.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys


def main() -> int:
    listener = socket.socket(fileno=int(sys.argv[1]))
    runner = socket.socket(fileno=int(sys.argv[2]))
    test = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    test.connect(os.environ["PLAYED_FRONT"])
    watched = selectors.DefaultSelector()
    watched.register(runner, selectors.EVENT_READ, test)
    watched.register(test, selectors.EVENT_READ, runner)
    while True:
        for key, _ in watched.select():
            source, target = key.fileobj, key.data
            assert isinstance(source, socket.socket)
            if not passed_on(source, target):
                listener.close()
                return int(os.environ.get("PLAYED_FRONT_EXIT", "0"))


def passed_on(source: socket.socket, target: socket.socket) -> bool:
    """Whether both are still there; one that goes may leave something unread."""
    try:
        data = source.recv(65536)
        target.sendall(data)
    except ConnectionError:
        return False
    return bool(data)


if __name__ == "__main__":
    sys.exit(main())

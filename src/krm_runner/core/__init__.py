"""The policy of the runner, free of I/O: nothing here knows an event loop, a socket, a clock or a process."""

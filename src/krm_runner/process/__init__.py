"""Executing local processes: start, feed, read, limit, kill, reap. Knows nothing of images or gRPC."""

"""Files on disk that change while the service runs: noticed, read again, never replaced by a broken version."""

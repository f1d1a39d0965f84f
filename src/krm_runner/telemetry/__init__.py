"""What operators see: log lines, metrics, traces. Off costs nothing; nothing here decides anything."""

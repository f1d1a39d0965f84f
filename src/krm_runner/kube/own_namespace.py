"""The namespace that this process runs in."""

from __future__ import annotations

from pathlib import Path

OUTSIDE = "porch-system"
"""Where the runner's own things are when it runs outside of a cluster."""

_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace(file: Path = _FILE) -> str:
    """As the service account that is mounted into the pod says it."""
    try:
        return file.read_text(encoding="utf-8").strip() or OUTSIDE
    except (OSError, ValueError):
        return OUTSIDE

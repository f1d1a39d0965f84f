"""The metrics of a runner, read as Prometheus reads them."""

from __future__ import annotations

import re
import urllib.request

from support.processes import eventually
from support.server import free_port


class Metrics:
    """Of one runner, which is to be started with this environment."""

    def __init__(self) -> None:
        self._port = free_port()
        self.environment = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._port)}

    def values(self, name: str, **labels: str) -> list[float]:
        """Of all series with this name and these labels."""
        return [value for found, value in self._series(name) if labels.items() <= found.items()]

    def sum(self, name: str, **labels: str) -> float:
        """Of the same."""
        return sum(self.values(name, **labels))

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by some of its labels."""
        return {tuple(found.get(label, "") for label in labels): value for found, value in self._series(name)}

    async def show_in_standby(self, count: int) -> None:
        """Waits until so many processes can be taken: one that was just started is not the runner's to give yet."""
        await eventually(lambda: self.sum("standby_processes") == count, what=f"{count} in standby")

    def _series(self, name: str) -> list[tuple[dict[str, str], float]]:
        with urllib.request.urlopen(f"http://localhost:{self._port}/metrics", timeout=10) as response:
            lines = bytes(response.read()).decode().splitlines()
        pattern = re.compile(rf"krm_runner_{name}(?:\{{(.*)\}})? (\S+)")
        found = [match for line in lines if (match := pattern.fullmatch(line))]
        return [(dict(re.findall(r'(\w+)="([^"]*)"', match[1] or "")), float(match[2])) for match in found]

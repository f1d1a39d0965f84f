"""Reporting many changes: each of the first ones as a result of its own, the rest by number."""

from __future__ import annotations

from krm_function.package import Package, Resource

_MAX_SINGLE_RESULTS = 20
"""A result for each of thousands of changes would outgrow the package itself."""


class Changes:
    """Remembers what was changed, on which resource."""

    def __init__(self) -> None:
        self._changes: list[tuple[Resource, str, object, object]] = []
        self.count = 0

    def add(self, resource: Resource, field: str, current: object, proposed: object) -> None:
        """One value was changed."""
        self.count += 1
        if len(self._changes) < _MAX_SINGLE_RESULTS:
            self._changes.append((resource, field, current, proposed))

    def report(self, package: Package) -> None:
        """A result for each change."""
        for resource, field, current, proposed in self._changes:
            verb = "set" if current is None else "changed"
            package.report(f"{verb} to {proposed}", resource=resource, field=field, current=current, proposed=proposed)
        if self.count > len(self._changes):
            package.report(f"and {self.count - len(self._changes)} more")

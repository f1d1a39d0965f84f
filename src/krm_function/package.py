"""What a function sees: the resources of a package, the function config, and a place for results."""

from __future__ import annotations

from collections.abc import Mapping as AbstractMapping
from collections.abc import MutableMapping
from typing import Any, Literal

from krm_function.document import Document, Mapping, Sequence, is_mapping, is_sequence

Severity = Literal["error", "warning", "info"]

_PATHS = ("internal.config.kubernetes.io/path", "config.kubernetes.io/path")


class Resource(Mapping):
    """A Kubernetes resource: a mapping with a few names for what every function needs."""

    @property
    def api_version(self) -> str:
        return _text(self.get("apiVersion"))

    @property
    def group(self) -> str:
        """The part of apiVersion before the slash; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def kind(self) -> str:
        return _text(self.get("kind"))

    @property
    def name(self) -> str:
        return _text(self.at("metadata", "name"))

    @property
    def namespace(self) -> str:
        return _text(self.at("metadata", "namespace"))

    @property
    def path(self) -> str:
        """The file that the resource comes from."""
        annotations = self.at("metadata", "annotations")
        if not is_mapping(annotations):
            return ""
        return next((_text(annotations.get(name)) for name in _PATHS if annotations.get(name)), "")

    @property
    def labels(self) -> MutableMapping[str, Any]:
        """metadata.labels, made when it is not there."""
        return self.mapping("metadata", "labels")

    @property
    def annotations(self) -> MutableMapping[str, Any]:
        """metadata.annotations, made when it is not there."""
        return self.mapping("metadata", "annotations")

    def at(self, *path: str) -> Any:
        """The value at a path of keys, or None."""
        value: Any = self
        for key in path:
            if not is_mapping(value):
                return None
            value = value.get(key)
        return value

    def mapping(self, *path: str) -> MutableMapping[str, Any]:
        """The mapping at a path of keys, made when it is not there (or is empty)."""
        value: MutableMapping[str, Any] = self
        for key in path:
            found: Any = value.get(key)
            if found is None:
                found = value[key] = {}
            if not is_mapping(found):
                raise ValueError(f"{'.'.join(path)} of {self.kind} {self.name} is not a mapping")
            value = found
        return value


class Package:
    """A ResourceList, as the function gets it on stdin. ValueError if the text is something else."""

    def __init__(self, text: str) -> None:
        # yes, no, on and off are text to kpt and the functions of its catalog.
        self._document = Document(text, mapping_type=Resource, has_word_booleans=False)
        self._root = self._document.root
        if self._root.get("kind") != "ResourceList":
            raise ValueError(f'its kind is "{self._root.get("kind")}"')
        if not is_mapping(self._root.get("functionConfig", {})):
            raise ValueError("functionConfig is not a mapping")
        items = self._root.get("items", [])
        if not is_sequence(items) or not all(isinstance(item, Resource) for item in items):
            raise ValueError("items is not a list of mappings")
        self._has_errors = False

    @property
    def items(self) -> list[Resource]:
        """The resources. Change them in place; `add` and `remove` change which there are."""
        return [item for item in self._root.get("items") or () if isinstance(item, Resource)]

    @property
    def config(self) -> Resource | None:
        """The function config, if there is one."""
        config = self._root.get("functionConfig")
        return config if isinstance(config, Resource) else None

    def config_data(self) -> dict[str, Any]:
        """The function config's settings: `data` of a ConfigMap, or all but the envelope of a kind of its own."""
        if self.config is None:
            return {}
        plain = self.config.plain()
        if self.config.kind == "ConfigMap" and self.config.group == "":
            return plain.get("data") or {}
        return {key: value for key, value in plain.items() if key not in ("apiVersion", "kind", "metadata")}

    def add(self, resource: AbstractMapping[str, Any]) -> None:
        """One more resource."""
        items = self._root.get("items")
        if isinstance(items, Sequence):
            items.append(dict(resource))
        else:
            self._root["items"] = [*(items or []), dict(resource)]

    def remove(self, resource: Resource) -> None:
        """One resource less."""
        self._root["items"].remove(resource)

    def report(
        self,
        message: str,
        *,
        severity: Severity = "info",
        resource: Resource | None = None,
        field: str = "",
        current: object = None,
        proposed: object = None,
    ) -> None:
        """A result: what was found or done, and where. An error makes the function fail in the end."""
        result: dict[str, Any] = {"message": message, "severity": severity}
        if resource is not None:
            identity = {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": resource.name,
                "namespace": resource.namespace,
            }
            result["resourceRef"] = {key: value for key, value in identity.items() if value}
            if resource.path:
                result["file"] = {"path": resource.path}
        if field:
            values = {"path": field, "currentValue": current, "proposedValue": proposed}
            result["field"] = {key: value for key, value in values.items() if value is not None}
        self._has_errors |= severity == "error"
        self.add_result(result)

    def add_result(self, result: AbstractMapping[str, Any]) -> None:
        """Add a result as it is. Unlike `report`, this never makes the function fail."""
        results = self._root.get("results")
        if isinstance(results, Sequence):
            results.append(dict(result))
        else:
            self._root["results"] = [*(results or []), dict(result)]

    @property
    def has_errors(self) -> bool:
        """Whether an error was reported."""
        return self._has_errors

    def render(self) -> str:
        """The ResourceList with all changes."""
        return self._document.render()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""

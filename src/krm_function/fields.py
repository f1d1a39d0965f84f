"""Setting entries of mappings at many places: which kinds have which paths, and what happens where one is missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, cast

from krm_function.document import is_mapping, is_sequence
from krm_function.function import FunctionError
from krm_function.kubernetes import is_local_config
from krm_function.package import Package, Resource
from krm_function.reporting import Changes


class FieldSpec(NamedTuple):
    """A path of keys, for the kinds that it applies to; empty means any. Sequences on the way are walked through."""

    path: str
    group: str = ""
    version: str = ""
    kind: str = ""
    create: bool = False
    """Whether a mapping that is missing is made."""

    def applies_to(self, resource: Resource) -> bool:
        """Whether the resource is of the kind that is meant."""
        version = resource.api_version.rpartition("/")[2]
        return self.group in ("", resource.group) and self.version in ("", version) and self.kind in ("", resource.kind)

    def places(self, resource: Resource) -> Iterator[tuple[MutableMapping[str, Any], str]]:
        """Every mapping at the path, with the name of its place."""
        keys = self.path.replace("[]", "").split("/")
        yield from _walk(resource, keys, create=self.create, place="")


def _walk(
    holder: MutableMapping[str, Any], keys: list[str], *, create: bool, place: str
) -> Iterator[tuple[MutableMapping[str, Any], str]]:
    if not keys:
        yield holder, place
        return
    name = f"{place}.{keys[0]}" if place else keys[0]
    found: object = holder.get(keys[0])
    if is_sequence(found):
        for index, entry in enumerate(found):
            if is_mapping(entry):
                yield from _walk(entry, keys[1:], create=create, place=f"{name}[{index}]")
        return
    if found is None and create:
        holder[keys[0]] = made = dict[str, Any]()
        found = made
    if is_mapping(found):
        yield from _walk(found, keys[1:], create=create, place=name)


def set_everywhere(package: Package, specs: Iterable[FieldSpec], *, what: str, kind: str, more: str) -> None:
    """Set the entries of the function config (labels, annotations) at all places, and report it."""
    entries, additional = _read_config(package, what=what, kind=kind, more=more)
    changes = Changes()
    fields = [*specs, *additional]
    for resource in package.items:
        if is_local_config(resource):
            continue
        for spec in fields:
            if spec.applies_to(resource):
                for holder, place in spec.places(resource):
                    _set_entries(holder, entries, resource, place, changes)
    if changes.count:
        package.report(f"set {changes.count} {what} in total")
    else:
        package.report(f"all {what} are already set. no value changed")
    changes.report(package)


def _set_entries(
    holder: MutableMapping[str, Any], entries: Mapping[str, str], resource: Resource, place: str, changes: Changes
) -> None:
    for key, value in entries.items():
        current = holder.get(key)
        if current != value:
            holder[key] = value
            changes.add(resource, f"{place}.{key}", current, value)


def _read_config(package: Package, *, what: str, kind: str, more: str) -> tuple[dict[str, str], list[FieldSpec]]:
    config = package.config
    if config is None:
        raise FunctionError(f"FunctionConfig is missing. Expect `ConfigMap.v1` or `{kind}.v1alpha1.fn.kpt.dev`")
    data = package.config_data()
    additional: list[FieldSpec] = []
    if (config.api_version, config.kind) == ("v1", "ConfigMap"):
        entries: object = data
    elif (config.api_version, config.kind) == ("fn.kpt.dev/v1alpha1", kind):
        entries = data.get(what)
        additional = [_field_spec(entry, more) for entry in cast(list[object], data.get(more) or [])]
    else:
        raise FunctionError(
            f"unknown functionConfig Kind={config.kind} ApiVersion={config.api_version}, "
            f"expect `ConfigMap.v1` or `{kind}.v1alpha1.fn.kpt.dev`"
        )
    if not isinstance(entries, dict) or not entries:
        raise FunctionError(f"the function config names no {what}")
    named = cast(dict[object, object], entries)
    for key, value in named.items():
        if not isinstance(value, str):
            raise FunctionError(f"the value of {key} is not text: put it in quotes")
    return {str(key): str(value) for key, value in named.items()}, additional


def _field_spec(entry: object, where: str) -> FieldSpec:
    fields = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    if not isinstance(fields.get("path"), str):
        raise FunctionError(f"an entry of {where} has no path")
    return FieldSpec(
        path=fields["path"],
        group=str(fields.get("group") or ""),
        version=str(fields.get("version") or ""),
        kind=str(fields.get("kind") or ""),
        create=bool(fields.get("create")),
    )

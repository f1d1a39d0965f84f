"""What an image is made of, as a CycloneDX document: Debian packages, Python packages, the crates of the wrapper.

The same image has the same document: it bears no time, and its serial number comes from the image's digest.
"""

# The classes of cyclonedx are made by decorators that pyright cannot follow; mypy can.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportArgumentType=false

from __future__ import annotations

import json
import tomllib
import uuid
from collections.abc import Iterable
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from images.debian import Package
from images.oci import Image
from images.wheels import Wheel

ROOT = Path(__file__).parent.parent
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://krm-runner/sbom")


def write(path: Path, image: Image, *, name: str, version: str, components: Iterable[Component]) -> None:
    """Write the document of an image."""
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, image.digest))
    bom.metadata.component = Component(
        name=name,
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=image.digest.removeprefix("sha256:"))],
        purl=PackageURL("oci", None, name, image.digest),
    )
    bom.components.update(components)
    bom.register_dependency(bom.metadata.component, bom.components)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    # When it was written is nobody's business: two builds are the same.
    del document["metadata"]["timestamp"]
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def debian_components(packages: Iterable[Package]) -> list[Component]:
    return [
        _component(
            package.name,
            package.version,
            PackageURL(
                "deb", "debian", package.name, package.version, {"arch": package.architecture, "distro": "bookworm"}
            ),
            sha256=package.sha256,
        )
        for package in packages
    ]


def python_components(wheels: Iterable[Wheel]) -> list[Component]:
    return [
        _component(wheel.name, wheel.version, PackageURL("pypi", None, wheel.name, wheel.version)) for wheel in wheels
    ]


def wrapper_crates() -> list[Component]:
    """What the wrapper server is built from, itself included."""
    return _locked(ROOT / "Cargo.lock", "wrapper-server")


def runner_crates() -> list[Component]:
    """What the programs of the runner's image are built from, themselves included."""
    found = [*wrapper_crates(), *_locked(ROOT / "Cargo.lock", "krm-front")]
    return list({str(crate.purl): crate for crate in found}.values())


def _locked(path: Path, program: str) -> list[Component]:
    """A crate of a lock file and everything that it is built from and tested with."""
    packages = tomllib.loads(path.read_text())["package"]
    # A dependency is written as `name`, or as `name version` where the file has several of that name.
    by_name = {key: crate for crate in packages for key in (crate["name"], f"{crate['name']} {crate['version']}")}
    found: dict[str, Component] = {}
    remaining = [program]
    while remaining:
        crate = by_name[remaining.pop()]
        url = PackageURL("cargo", None, crate["name"], crate["version"])
        if str(url) not in found:
            found[str(url)] = _component(crate["name"], crate["version"], url)
            remaining += crate.get("dependencies", [])
    return [found[url] for url in sorted(found)]


def service(version: str) -> Component:
    return Component(
        name="krm-runner", version=version, type=ComponentType.APPLICATION, bom_ref=f"krm-runner@{version}"
    )


def _component(name: str, version: str, purl: PackageURL, *, sha256: str = "") -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else [],
    )

"""Reads `cargo metadata` on stdin and refuses crates whose licence does not go with Apache-2.0.

An expression such as `MIT OR (Apache-2.0 WITH LLVM-exception)` passes if one of its alternatives does; of `AND`, all
parts must pass. Crates that are only used by tests are looked at as well: they are few.
"""

from __future__ import annotations

import json
import re
import sys

ALLOWED = {
    "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "Unicode-3.0",
    "Unlicense", "Zlib", "0BSD",
}  # fmt: skip


def is_allowed(expression: str) -> bool:
    """Whether a licence expression passes."""
    # Crates from before SPDX expressions write a slash for OR.
    expression = expression.replace("/", " OR ")
    while inner := re.search(r"\(([^()]*)\)", expression):
        verdict = "MIT" if is_allowed(inner[1]) else "refused"
        expression = expression[: inner.start()] + verdict + expression[inner.end() :]
    alternatives = re.split(r"\s+OR\s+", expression.strip())
    return any(all(part.strip() in ALLOWED for part in re.split(r"\s+AND\s+", each)) for each in alternatives)


def main() -> None:
    """Check them all."""
    packages = json.load(sys.stdin)["packages"]
    refused = [
        f"{package['name']} {package['version']}: {package['license']}"
        for package in packages
        if not is_allowed(package["license"] or "none")
    ]
    if refused:
        sys.exit("crates whose licence is not known to go with Apache-2.0:\n  " + "\n  ".join(refused))
    sys.stdout.write(f"licences of {len(packages)} crates: fine\n")


if __name__ == "__main__":
    main()

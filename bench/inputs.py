"""The resource lists that the benchmarks work on, of any size, with the function config that a function asks for."""

from __future__ import annotations

from pathlib import Path

_INPUTS = Path(__file__).parent.parent / "tests" / "vectors" / "inputs"

SET_NAMESPACE_CONFIG = b"""\
functionConfig:
  apiVersion: v1
  kind: ConfigMap
  metadata:
    name: config
  data:
    namespace: staging
"""

STARLARK_CONFIG = b"""\
functionConfig:
  apiVersion: fn.kpt.dev/v1alpha1
  kind: StarlarkRun
  metadata:
    name: config
  source: |
    for resource in ctx.resource_list["items"]:
      resource["metadata"]["namespace"] = "staging"
"""


def generated(size: int, function_config: bytes = b"") -> bytes:
    """A resource list of at least `size` bytes."""
    head, item = (_INPUTS / "head.yaml").read_bytes(), (_INPUTS / "item.yaml").read_bytes()
    return head + item * -(-(size - len(head) - len(function_config)) // len(item)) + function_config

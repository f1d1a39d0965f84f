"""Writes the descriptors of everything that the wrapper server serves, for its reflection: FILE."""

from __future__ import annotations

import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_health.v1 import health_pb2

from krm_runner.rpc._generated import evaluator_pb2


def main() -> None:
    """Write them."""
    descriptors = FileDescriptorSet()
    for module in (evaluator_pb2, health_pb2):
        descriptors.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    Path(sys.argv[1]).write_bytes(descriptors.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()

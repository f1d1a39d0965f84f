"""krm-runner: executes KRM functions for Porch over gRPC."""

__version__ = "0.1.0"

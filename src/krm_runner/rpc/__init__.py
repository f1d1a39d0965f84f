"""gRPC, and nothing but gRPC: the server, its health, its reflection, and how errors become statuses."""

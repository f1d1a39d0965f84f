"""A real single-node Kubernetes for the tests, sealed off from the machine that it runs on: see README.md."""

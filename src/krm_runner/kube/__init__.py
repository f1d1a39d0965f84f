"""The adapter to the Kubernetes API, over kubernetes_asyncio: configuration, authentication and transport, raw JSON."""

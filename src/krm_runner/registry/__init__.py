"""The adapter to container registries, over aiohttp: metadata of images, never their layers."""

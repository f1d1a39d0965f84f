"""The runtimes: each executes a function in its own way, and the chain asks them in order."""

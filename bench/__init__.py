"""Benchmarks, run by `make bench`. Every figure is a ratio of one run (docs/performance.md)."""

"""Whole models beside the runtimes that users already have: `python -m benchmarks.peers`."""

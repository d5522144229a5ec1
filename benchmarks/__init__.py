"""Benchmarks against the runtimes that users already have; each prints a table and JSON lines."""

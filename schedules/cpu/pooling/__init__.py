"""Pooling on CPUs."""

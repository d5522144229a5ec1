"""Elementwise functions, data movement, and everything else on CPUs."""

"""Passes that choose layouts and pack weights."""

"""Passes that choose the dtype of each value."""

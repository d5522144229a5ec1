"""`relaxc profile`."""

from __future__ import annotations

__all__ = ["profile"]


def profile() -> None:
    """Not yet."""
    raise NotImplementedError

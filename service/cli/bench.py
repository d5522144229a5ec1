"""`relaxc bench`."""

from __future__ import annotations

__all__ = ["bench"]


def bench() -> None:
    """Not yet."""
    raise NotImplementedError

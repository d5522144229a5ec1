"""`relaxc run`."""

from __future__ import annotations

__all__ = ["run"]


def run() -> None:
    """Not yet."""
    raise NotImplementedError

"""Variables of the environment that hold for a moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["environment_variable"]


@contextmanager
def environment_variable(name: str, value: str) -> Iterator[None]:
    """While it is open, the variable has `value`; afterwards what it had before. Other threads see it too."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before

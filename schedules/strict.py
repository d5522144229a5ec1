"""Strict mode, which the tests run in: what a compile makes up for in silence fails there."""

from __future__ import annotations

import os

__all__ = ["STRICT", "NotStrict", "is_strict", "made_up_for"]

STRICT = "RELAXC_STRICT"
"""The variable of the environment that switches it on, for child processes too. `tests/conftest.py` sets it."""


class NotStrict(AssertionError):
    """Something was left undone that a correct program has no need to leave: a bug, or a missing refusal before it."""


def is_strict() -> bool:
    """Return whether it is on."""
    return bool(os.environ.get(STRICT))


def made_up_for(what: str) -> None:
    """Raise NotStrict in strict mode. Called where a compile goes on, right but slower, after `what` went wrong."""
    if is_strict():
        raise NotStrict(what)

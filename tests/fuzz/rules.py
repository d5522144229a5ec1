"""What a rule is that draws a node, and the rules by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fuzz.pool import Pool

__all__ = ["RULES", "Drawn", "NoDraw", "Rule", "rule"]

Drawn = tuple[list[str], dict[str, Any]]
"""Inputs by name, '' for one left out, and attributes."""

Rule = Callable[[Pool], Drawn]

RULES: dict[str, Rule] = {}


class NoDraw(Exception):
    """The pool has nothing that this operator takes."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return what registers a rule for these operators."""

    def register(made: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, made))
        return made

    return register

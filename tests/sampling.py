"""Large products of parameters: `make test` runs a seeded part that has every value, `make conformance` the rest.

`pytest.mark.sampled` on a test or a module asks for it. A case is kept when one of its parameters has a value that no
kept case has, in an order that only names decide; the others are `slow`.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import pytest

__all__ = ["in_order", "mark_unsampled"]

Item = TypeVar("Item", bound=pytest.Item)


def mark_unsampled(items: Iterable[pytest.Item]) -> None:
    """Marks as slow what the sample leaves out."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") and hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        seen: set[tuple[int, ...]] = set()
        for item in in_order(same, seed="sampled"):
            values = _values(item)
            if values <= seen:
                item.add_marker(pytest.mark.slow)
            seen |= values


def _values(item: pytest.Function) -> set[tuple[int, ...]]:
    """What each `parametrize` of the test gave to this case; the objects of one list are the same in all cases."""
    found, params = set(), dict(item.callspec.params)
    for number, mark in enumerate(item.iter_markers("parametrize")):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        found.add((number, *(id(params.pop(name)) for name in names)))
    return found | {(hash(name), id(value)) for name, value in params.items()}


def in_order(items: Iterable[Item], seed: str) -> list[Item]:
    """The items in an order that their names and `seed` alone decide."""
    return sorted(items, key=lambda item: hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest())

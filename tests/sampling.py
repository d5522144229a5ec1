"""What `make test` takes of a test with many cases; `make conformance` has the rest.

`pytest.mark.sampled` on a test or a module takes a case when one of its parameters has a value that no case before it
has, in an order that only names decide; `sampled(most=4)` takes the first four of these, and `sampled("bert", "cnn")`
the cases of these names alone. The others are `slow`.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import pytest

__all__ = ["in_order", "mark_unsampled"]

Item = TypeVar("Item", bound=pytest.Item)


def mark_unsampled(items: Iterable[pytest.Item], *, whole: bool = False) -> None:
    """Marks as slow what the sample leaves out. A name that no case has is an error where all cases are here."""
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") and hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        mark = same[0].get_closest_marker("sampled")
        assert mark is not None
        if mark.args:
            taken = [item for item in same if item.callspec.id in mark.args]
            if whole and len(taken) < len(mark.args):
                raise pytest.UsageError(f"{same[0].nodeid}: a name in {mark} is no case's")
        else:
            taken = _with_every_value(same)[: mark.kwargs.get("most")]
        for item in same:
            if item not in taken:
                item.add_marker(pytest.mark.slow)


def _with_every_value(cases: list[pytest.Function]) -> list[pytest.Function]:
    seen: set[tuple[int, ...]] = set()
    taken = []
    for item in in_order(cases, seed="sampled"):
        values = _values(item)
        if not values <= seen:
            taken.append(item)
        seen |= values
    return taken


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

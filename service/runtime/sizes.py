"""Sizes to try of symbolic dims: small ones, of which all that the signature says of them holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import combinations_with_replacement, islice

from relaxc.service.errors import InvalidShape
from relaxc.service.runtime.dims import evaluate, holds, names_in, sides
from relaxc.service.signature import Dim, DimBounds, Signature

__all__ = ["cases", "choose_sizes"]

_TRIED = (2, 3, 7, 1)
"""Sizes for a symbolic dim, the most telling first: odd ones find padding errors, 1 finds wrong broadcasts."""

_NEAR = 64
"""The least sizes that are tried of a dim that cannot have these: so many that its own conditions allow..."""
_REACH = 4096
"""... within so many of its least one."""
_NUMBERS = 10
"""Numbers in a dim's conditions whose products are tried."""
_LARGEST = 1 << 31
_LADDER = [step << power for power in range(15) for step in (1, 3)]
_STEPS = 20_000

Sizes = Mapping[str, int]
Rule = tuple[frozenset[str], Callable[[Sizes], bool]]
"""Names, and whether their sizes will do."""


def choose_sizes(signature: Signature, count: int = 3) -> list[dict[str, int]]:
    """Return up to `count` different assignments of a size to every symbolic dim, small and within the bounds.

    Dims get different sizes in one assignment where their bounds allow it, so that exchanged axes are found. Where
    sizes can be found by which no output is empty, others are not chosen. A signature without symbolic dims has one,
    the empty one. Raise InvalidShape where none are found of which the conditions hold.
    """
    found = _chosen(signature)
    if not found:
        told = "; ".join(condition.text for condition in signature.conditions)
        raise InvalidShape(f"no sizes were found of which all of this holds: {told}")
    return [dict(sizes) for sizes in found[:count]]


def cases(signature: Signature) -> list[tuple[Signature, dict[str, int]]]:
    """Return the ways in which values of inputs decide what must hold: the signature with that, and the values."""
    tests = list(dict.fromkeys(each.when for each in signature.conditions if each.when is not None))
    tests += [(name, {"==": "!=", "!=": "=="}[relation], number) for name, relation, number in tests]
    found = []
    for name, relation, number in dict.fromkeys(tests):
        values = {name: number if relation == "==" else number // 2 if number // 2 != number else number + 1}
        kept = tuple(replace(each, when=None) for each in signature.conditions if each.applies(values))
        if all(holds(each, {}) for each in kept if not names_in(sides(each)[0])):
            found.append((replace(signature, conditions=kept), values))
    return found or [(signature, {})]


@lru_cache(maxsize=64)
def _chosen(signature: Signature) -> list[dict[str, int]]:
    names = [name for name, _ in signature.dims]
    rules = _conditions(signature)
    filled = [*rules, *_filled(signature)]
    found: list[dict[str, int]] = []
    for shift in range(len(_TRIED)):
        wanted = {name: _clamped(signature, name, _TRIED[(i + shift) % len(_TRIED)]) for i, name in enumerate(names)}
        sizes = _nearest(signature, wanted, filled)
        if sizes is None:
            sizes = _nearest(signature, wanted, rules)
        if sizes is not None and sizes not in found:
            found.append(sizes)
    return found


def _clamped(signature: Signature, name: str, size: int) -> int:
    bounds = signature.bounds[name]
    size = max(size, bounds.minimum)
    return size if bounds.maximum is None else min(size, bounds.maximum)


def _conditions(signature: Signature) -> list[Rule]:
    rules: list[Rule] = []
    for condition in signature.conditions:
        if condition.when is not None:
            continue
        left, _, right = sides(condition)
        rules.append((names_in(left) | names_in(right), partial(holds, condition)))
    return rules


def _filled(signature: Signature) -> list[Rule]:
    """That no dim of an output, which follows from the inputs' ones, is 0."""
    given = {name for spec in signature.inputs for dim in spec.shape for name in names_in(dim)}
    dims = {dim for spec in signature.outputs for dim in spec.shape if isinstance(dim, str)}
    return [(names_in(dim), partial(_is_positive, dim)) for dim in sorted(dims) if names_in(dim) <= given]


def _is_positive(dim: Dim, sizes: Sizes) -> bool:
    try:
        return evaluate(dim, sizes) > 0
    except ZeroDivisionError:
        return False


def _nearest(signature: Signature, wanted: Sizes, rules: Sequence[Rule]) -> dict[str, int] | None:
    """Return sizes near the wanted ones that will do, those themselves if they do; None where none were found soon.

    Names that no rule ties to each other are searched apart, and those of no broken rule keep their sizes.
    """
    sizes = dict(wanted)
    for names, tied in _groups(rules):
        if all(rule(sizes) for _, rule in tied):
            continue
        if not names or not names <= sizes.keys():
            return None
        order = _ordered(names, tied)
        searched = (_searched(order, domains, tied) for domains in _domains(signature, sizes, names, tied))
        found = next(filter(None, searched), None)
        if found is None:
            return None
        sizes |= found
    return sizes


def _groups(rules: Sequence[Rule]) -> list[tuple[frozenset[str], list[Rule]]]:
    """The rules by the names that they tie together, directly or through other rules."""
    groups: list[tuple[frozenset[str], list[Rule]]] = []
    for names, rule in rules:
        touched = [group for group in groups if group[0] & names]
        groups = [group for group in groups if not group[0] & names]
        merged = [each for _, tied in touched for each in tied]
        groups.append((names.union(*(group[0] for group in touched)), [*merged, (names, rule)]))
    return groups


def _ordered(names: frozenset[str], rules: Sequence[Rule]) -> list[str]:
    """The names, such that each rule can be asked early: next is one of the rule that lacks the fewest."""
    order: list[str] = []
    while len(order) < len(names):
        lacking = [left for each, _ in rules if (left := sorted(each.difference(order)))]
        order.append(min(lacking, key=lambda left: (len(left), left))[0])
    return order


def _searched(
    order: Sequence[str], domains: Mapping[str, Sequence[int]], rules: Sequence[Rule]
) -> dict[str, int] | None:
    """The first sizes that will do, the last name's tried first; None where a number of steps found none."""
    places = {name: at for at, name in enumerate(order)}
    ready: list[list[Callable[[Sizes], bool]]] = [[] for _ in order]
    for names, rule in rules:
        ready[max(places[name] for name in names)].append(rule)
    steps = iter(range(_STEPS))

    def complete(sizes: dict[str, int]) -> dict[str, int] | None:
        at = len(sizes)
        if at == len(order):
            return sizes
        for size in domains[order[at]]:
            if next(steps, None) is None:
                return None
            more = {**sizes, order[at]: size}
            if all(rule(more) for rule in ready[at]) and (found := complete(more)) is not None:
                return found
        return None

    return complete({})


def _domains(
    signature: Signature, wanted: Sizes, names: frozenset[str], rules: Sequence[Rule]
) -> Iterator[dict[str, list[int]]]:
    """The sizes to try of each name, the nearest first; then fewer that lie further apart, for rules of many names."""
    fine, coarse = {}, {}
    for name in names:
        bounds, key = signature.bounds[name], partial(_distance, wanted[name])
        alone = [rule for each, rule in rules if each == {name}]
        texts = [
            each.text for each in signature.conditions if each.when is None and re.search(rf"\b{name}\b", each.text)
        ]
        allowed = partial(_allowed, bounds, name, alone)
        far, telling = _far(bounds, texts, _LADDER), _telling(texts)
        least = islice(filter(allowed, range(bounds.minimum, bounds.minimum + _REACH)), _NEAR)
        fine[name] = sorted({*least, *filter(allowed, far | telling)}, key=key)
        coarse[name] = sorted(filter(allowed, _far(bounds, texts, _LADDER[::6]) | {wanted[name]}), key=key)
    yield fine
    yield coarse


def _distance(wanted: int, size: int) -> tuple[int, int]:
    return abs(size - wanted), size


def _allowed(bounds: DimBounds, name: str, rules: Sequence[Callable[[Sizes], bool]], size: int) -> bool:
    return size in bounds and size <= _LARGEST and all(rule({name: size}) for rule in rules)


def _far(bounds: DimBounds, texts: Sequence[str], ladder: Sequence[int]) -> set[int]:
    """Sizes further and further apart, and common multiples of what conditions divide by."""
    moduli = sorted({int(each) for text in texts for each in re.findall(r"%\s*(\d+)", text)} - {0})[:_NUMBERS]
    common = {math.lcm(*pair) for pair in combinations_with_replacement(moduli, 2)} | {math.lcm(*moduli)}
    return {bounds.minimum + step for step in ladder} | {each * step for each in common for step in ladder[:8]}


def _telling(texts: Sequence[str]) -> set[int]:
    """Multiples of the numbers in conditions, products of two, and sizes beside."""
    numbers = list(dict.fromkeys(int(each) for text in texts for each in re.findall(r"\b\d+\b", text)))
    few = numbers[:_NUMBERS]
    sizes = {number * times + beside for number in numbers for times in (1, 2, 3) for beside in (-1, 0, 1)}
    products = {one * other for one, other in combinations_with_replacement(few, 2)}
    beside = {-1, 0, 1, *few, *(-each for each in few)}
    return sizes | {product + each for product in products for each in beside}

"""Sizes to try of symbolic dims: small ones, of which all that the signature says of them holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from service.errors import InvalidShape
from service.runtime.dims import evaluate, holds, names_in, sides
from service.signature import Dim, Signature

__all__ = ["choose_sizes"]

_TRIED = (2, 3, 7, 1)
"""Sizes for a symbolic dim, the most telling first: odd ones find padding errors, 1 finds wrong broadcasts."""

_NEAR = 64
"""Sizes from the least on that are tried of a dim that cannot have these."""
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
    names = [name for name, _ in signature.dims]
    rules = _conditions(signature)
    found: list[dict[str, int]] = []
    for shift in range(len(_TRIED)):
        wanted = {name: _clamped(signature, name, _TRIED[(i + shift) % len(_TRIED)]) for i, name in enumerate(names)}
        sizes = _nearest(signature, wanted, [*rules, *_filled(signature)]) or _nearest(signature, wanted, rules)
        if sizes is not None and sizes not in found:
            found.append(sizes)
    if not found:
        told = "; ".join(condition.text for condition in signature.conditions)
        raise InvalidShape(f"no sizes were found of which all of this holds: {told}")
    return found[:count]


def _clamped(signature: Signature, name: str, size: int) -> int:
    bounds = signature.bounds[name]
    size = max(size, bounds.minimum)
    return size if bounds.maximum is None else min(size, bounds.maximum)


def _conditions(signature: Signature) -> list[Rule]:
    rules: list[Rule] = []
    for condition in signature.conditions:
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
    """Return sizes near the wanted ones that will do, those themselves if they do; None where none were found soon."""
    if all(rule(wanted) for _, rule in rules):
        return dict(wanted)
    numbers = {int(each) for condition in signature.conditions for each in re.findall(r"\b\d+\b", condition.text)}
    steps = iter(range(_STEPS))

    def complete(sizes: dict[str, int], left: Sequence[str]) -> dict[str, int] | None:
        if not left:
            return sizes
        name, *rest = left
        for size in _candidates(signature, name, wanted[name], numbers):
            if next(steps, None) is None:
                return None
            more = {**sizes, name: size}
            ready = (rule for names, rule in rules if name in names and names <= more.keys())
            if all(rule(more) for rule in ready) and (found := complete(more, rest)) is not None:
                return found
        return None

    return complete({}, list(wanted))


def _candidates(signature: Signature, name: str, wanted: int, numbers: set[int]) -> Iterator[int]:
    """Sizes within the bounds, the nearest first; multiples of the numbers in conditions, and those beside, too."""
    bounds = signature.bounds[name]
    sizes = set(range(bounds.minimum, bounds.minimum + _NEAR))
    sizes |= {number * times + beside for number in numbers for times in (1, 2, 3) for beside in (-1, 0, 1)}
    return iter(sorted((size for size in sizes if size in bounds), key=lambda size: (abs(size - wanted), size)))

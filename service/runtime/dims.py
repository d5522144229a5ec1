"""Symbolic dims: expressions evaluated without `eval`, and sizes found from the shapes of real inputs."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from relaxc.service.errors import ArtifactCorrupt, InputShape
from relaxc.service.signature import MAX_DIM_CHARS, Condition, Dim, DimBounds, Signature

__all__ = ["bind", "evaluate", "holds", "names_in", "shape_of", "sides", "valued"]

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "Min": min, "Max": max}
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_DIM_CHARS:
        raise ArtifactCorrupt(f"a symbolic dim has {len(text)} characters, more than {MAX_DIM_CHARS}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArtifactCorrupt(f"the symbolic dim {text!r} is no expression") from error
    if not _allowed(tree):
        raise ArtifactCorrupt(f"the symbolic dim {text!r} is no integer expression over names, + - * // % min max")
    return tree


def _allowed(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) is int and abs(value) < 1 << 62
        case ast.Name(id=name):
            return name not in _FUNCTIONS
        case ast.BinOp(left=left, op=op, right=right):
            return type(op) in _BINARY and _allowed(left) and _allowed(right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _allowed(operand)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name in _FUNCTIONS and len(args) > 1 and all(map(_allowed, args))
    return False


@lru_cache(maxsize=4096)
def names_in(dim: Dim) -> frozenset[str]:
    """Return the names that a dim uses: none for a size. Raise ArtifactCorrupt for what is no integer expression."""
    if isinstance(dim, int):
        return frozenset()
    called = {
        node.func.id for node in ast.walk(_parse(dim)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return frozenset(node.id for node in ast.walk(_parse(dim)) if isinstance(node, ast.Name)) - called


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the size that `dim` has under `sizes`. Raise KeyError for a name without a size, ZeroDivisionError for //
    0.
    """
    return dim if isinstance(dim, int) else _evaluate(_parse(dim), sizes)


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_evaluate(left, sizes), _evaluate(right, sizes))
        case ast.UnaryOp(operand=operand):
            return -_evaluate(operand, sizes)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_evaluate(argument, sizes) for argument in args))
    raise AssertionError(f"_parse let {ast.dump(node)} through")


@lru_cache(maxsize=4096)
def sides(condition: Condition) -> tuple[str, str, str]:
    """Return the left dim, the relation and the right dim. Raise ArtifactCorrupt for what is no condition."""
    parts = re.split(r"(==|!=|>=|<=|>|<)", condition.text)
    if len(parts) != 3:
        raise ArtifactCorrupt(f"the condition {condition.text!r} is no comparison of two dims")
    left, relation, right = (part.strip() for part in parts)
    names_in(left), names_in(right)
    return left, relation, right


def holds(condition: Condition, sizes: Mapping[str, int]) -> bool:
    """Return whether a condition is known to hold of these sizes."""
    left, relation, right = sides(condition)
    try:
        return _RELATIONS[relation](evaluate(left, sizes), evaluate(right, sizes))
    except (KeyError, ZeroDivisionError):
        return False


def shape_of(dims: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape that `dims` have under `sizes`."""
    return tuple(evaluate(dim, sizes) for dim in dims)


def valued(signature: Signature) -> frozenset[str]:
    """Return the inputs whose values decide what must hold of a call's sizes."""
    return frozenset(each.when[0] for each in signature.conditions if each.when is not None)


def bind(
    signature: Signature, shapes: Sequence[tuple[int, ...]], values: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the size of every symbolic dim, from the shapes of the inputs in their order, and from what is known of
    the `values` of those that decide what must hold.

    Raise InputShape for a wrong rank or size, for two inputs that disagree on a dim, where a condition does not hold,
    and outside the bounds.
    """
    sizes: dict[str, int] = {}
    seen: dict[str, str] = {}
    later: list[tuple[str, int, Dim, int]] = []
    for spec, shape in zip(signature.inputs, shapes, strict=True):
        if len(shape) != len(spec.shape):
            raise InputShape(
                f"input {spec.name!r} has {len(shape)} dims {_text(shape)}, it takes {len(spec.shape)}: {spec}",
                name=spec.name,
                shape=list(shape),
            )
        for axis, (dim, size) in enumerate(zip(spec.shape, shape, strict=True)):
            if isinstance(dim, int):
                if size != dim:
                    raise _wrong(spec.name, axis, size, str(dim), shape)
            elif dim.isidentifier():
                if sizes.setdefault(dim, size) != size:
                    raise _disagree(dim, seen[dim], sizes[dim], spec.name, axis, size, shape)
                seen.setdefault(dim, spec.name)
            else:
                later.append((spec.name, axis, dim, size))
    while later:
        later = _bind_expressions(later, sizes)
    for condition in signature.conditions:
        if condition.applies(values or {}) and not holds(condition, sizes):
            raise _broken(condition, sizes)
    bounds = signature.bounds
    for name, size in sizes.items():
        if name in bounds and size not in bounds[name]:
            raise _outside(name, size, bounds[name], seen.get(name))
    return sizes


def _bind_expressions(rows: list[tuple[str, int, Dim, int]], sizes: dict[str, int]) -> list[tuple[str, int, Dim, int]]:
    """Check the expressions whose names have sizes, solve one that lacks a single name; what is left to do."""
    left = []
    for name, axis, dim, size in rows:
        unknown = names_in(dim) - sizes.keys()
        if not unknown:
            if _try(dim, sizes) != size:
                used = ", ".join(f"{n} = {sizes[n]}" for n in sorted(names_in(dim)))
                raise _wrong(name, axis, size, f"{dim} = {_try(dim, sizes)} ({used})", None)
        elif len(unknown) == 1:
            (lacking,) = unknown
            sizes[lacking] = _solve(name, axis, dim, size, lacking, sizes)
        else:
            left.append((name, axis, dim, size))
    if len(left) == len(rows):  # only dims of several names that nothing else fixes: the compiled code checks these
        return []
    return left


def _solve(name: str, axis: int, dim: Dim, size: int, lacking: str, sizes: Mapping[str, int]) -> int:
    """The value of `lacking` at which `dim`, taken as linear in it, has this size."""
    at_zero, at_one = (_try(dim, {**sizes, lacking: value}) for value in (0, 1))
    if at_zero is not None and at_one is not None and at_one != at_zero:
        found, rest = divmod(size - at_zero, at_one - at_zero)
        if rest == 0 and found >= 0 and _try(dim, {**sizes, lacking: found}) == size:
            return found
    raise _wrong(name, axis, size, f"{dim} for some {lacking}", None)


def _try(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    try:
        return evaluate(dim, sizes)
    except ZeroDivisionError:
        return None


def _text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _wrong(name: str, axis: int, size: int, wanted: str, shape: tuple[int, ...] | None) -> InputShape:
    given = "" if shape is None else f" of {_text(shape)}"
    return InputShape(f"input {name!r}: axis {axis}{given} has size {size}, it must be {wanted}", name=name, axis=axis)


def _disagree(dim: str, first: str, size: int, name: str, axis: int, other: int, shape: tuple[int, ...]) -> InputShape:
    return InputShape(
        f"input {name!r}: axis {axis} of {_text(shape)} has size {other}, but {dim} is {size} in input {first!r}",
        name=name,
        axis=axis,
        dim=dim,
    )


def _outside(dim: str, size: int, bounds: DimBounds, name: str | None) -> InputShape:
    where = f" of input {name!r}" if name else ""
    return InputShape(f"dim {dim!r}{where} is {size}, outside its bounds {bounds}", dim=dim, size=size)


def _broken(condition: Condition, sizes: Mapping[str, int]) -> InputShape:
    left, _, right = sides(condition)
    used = {name: sizes.get(name) for name in sorted(names_in(left) | names_in(right))}
    found = ", ".join(f"{name} is {size}" for name, size in used.items())
    if not used:
        return InputShape(condition.why, condition=condition.text, sizes=used)
    return InputShape(f"{condition.why}: {condition.text} must hold, and {found}", condition=condition.text, sizes=used)

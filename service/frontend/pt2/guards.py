"""What an export took for granted of sizes, its `guards_code`: Python text, read as a tree and never run."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from relaxc.service.errors import InvalidShape, ModelMalformed, UnsupportedModel
from relaxc.service.signature import MAX_DIM_CHARS, Condition, Dim

__all__ = ["conditions"]

_MAX_GUARDS = 10_000
_LARGEST = 1 << 62
"""More than any number in a condition."""
_OPERATORS: dict[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
_RELATIONS: dict[type[ast.cmpop], tuple[str, Callable[[int, int], bool]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.GtE: (">=", operator.ge),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.Lt: ("<", operator.lt),
}
_FUNCTIONS = {"Max": "max", "Min": "min", "max": "max", "min": "min"}


class _Unknown(Exception):
    """A guard that says something else than how sizes compare."""


def conditions(guards: Sequence[str], shapes: Mapping[str, Sequence[Dim]]) -> tuple[Condition, ...]:
    """Return what the guards of a program ask of a call, in the signature's dims: `shapes` has each input's.

    Raise ModelMalformed for what is no Python, nests too deeply or computes too large a number, InvalidShape where the
    user's sizes break one, and UnsupportedModel for a guard that no call could be held to.
    """
    if len(guards) > _MAX_GUARDS:
        raise ModelMalformed(f"the program has {len(guards)} guards")
    found: dict[str, Condition] = {}
    for guard in guards:
        told = re.sub(r"L\['(\w+)'\]", r"\1", guard)[:MAX_DIM_CHARS]
        try:
            for text in _texts(_parsed(guard), shapes, told):
                found.setdefault(text, Condition(text, f"the program was exported for {told}"))
        except RecursionError as error:
            raise ModelMalformed(f"a guard of the program is nested too deeply: {told[:100]!r}") from error
        except (_Unknown, ZeroDivisionError) as error:
            raise UnsupportedModel(
                f"the program was exported for {told}, which no call can be held to",
                remedy="Export it with these sizes fixed.",
            ) from error
    return tuple(found.values())


def _parsed(guard: str) -> ast.expr:
    try:
        return ast.parse(guard, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ModelMalformed(f"a guard of the program is no expression: {guard[:100]!r}") from error


def _computed(compute: Callable[[int, int], int], one: int, other: int) -> int:
    value = compute(one, other)
    if abs(value) >= _LARGEST:
        raise ModelMalformed("a guard of the program computes with numbers beyond 64 bits")
    return value


def _texts(node: ast.expr, shapes: Mapping[str, Sequence[Dim]], told: str) -> Iterator[str]:
    """The comparisons in a guard, joined by `and`, of those that have names."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _texts(value, shapes, told)
        case ast.BoolOp(op=ast.Or(), values=values):
            texts = [list(_texts(value, shapes, "")) for value in values]
            if not all(texts):  # one is always true
                return
            either = " + ".join("*".join(map(_truth, each)) for each in texts)
            if len(either) > MAX_DIM_CHARS:
                raise _Unknown
            yield f"{either} >= 1"
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _RELATIONS for op in ops):
            sides = [_dim(each, shapes) for each in (left, *rights)]
            if any(len(str(side)) > MAX_DIM_CHARS for side in sides):
                raise _Unknown
            for one, op, other in zip(sides, ops, sides[1:], strict=False):
                symbol, compare = _RELATIONS[type(op)]
                if one == other and symbol in ("==", ">=", "<="):
                    continue
                if isinstance(one, str) or isinstance(other, str):
                    yield f"{one} {symbol} {other}"
                elif not compare(one, other) and not told:
                    yield "0 == 1"
                elif not compare(one, other):
                    raise InvalidShape(f"the program was exported for {told}, which the given shapes break")
        case _:
            raise _Unknown


def _truth(text: str) -> str:
    """A comparison as a number that is 1 where it holds, and 0 where not."""
    one, symbol, other = re.split(r" (==|!=|>=|<=|>|<) ", text)
    more, less = f"{one} - {other}", f"{other} - {one}"
    most = {">=": f"{more} + 1", ">": more, "<=": f"{less} + 1", "<": less}
    if symbol in most:
        return f"min(1, max(0, {most[symbol]}))"
    equal = f"max(0, 1 - max({more}, {less}))"
    return equal if symbol == "==" else f"(1 - {equal})"


def _dim(node: ast.expr, shapes: Mapping[str, Sequence[Dim]]) -> Dim:
    match node:
        case ast.Constant(value=int(value)) if type(value) is int and abs(value) < _LARGEST:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _dim(operand, shapes)
            return -inner if isinstance(inner, int) else f"(-{inner})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            symbol, compute = _OPERATORS[type(op)]
            one, other = _dim(left, shapes), _dim(right, shapes)
            if symbol in ("//", "%") and other == 0:
                raise ZeroDivisionError
            if isinstance(one, int) and isinstance(other, int):
                return _computed(compute, one, other)
            return f"({one} {symbol} {other})"
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and len(args) > 1:
            return f"{_FUNCTIONS[name]}({', '.join(str(_dim(argument, shapes)) for argument in args)})"
        case ast.Subscript(
            value=ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[], keywords=[]),
            slice=ast.Constant(value=int(axis)),
        ):
            return _size(tensor, axis, shapes)
    raise _Unknown


def _size(tensor: ast.expr, axis: int, shapes: Mapping[str, Sequence[Dim]]) -> Dim:
    """The dim of an input, whose name is its path: `L['cache'][0]` is `cache.0`, or `cache_0` in `*cache`."""
    path = _path(tensor)
    for name in (".".join(path), "_".join(path)):
        if name in shapes and 0 <= axis < len(shapes[name]):
            dim = shapes[name][axis]
            return dim if isinstance(dim, int) or dim.isidentifier() else f"({dim})"
    raise _Unknown


def _path(node: ast.expr) -> list[str]:
    match node:
        case ast.Name(id="L"):
            return []
        case ast.Subscript(value=value, slice=ast.Constant(value=str() | int() as key)):
            return [*_path(value), str(key)]
    raise _Unknown

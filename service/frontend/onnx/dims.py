"""Symbolic sizes: names in the file, TVM expressions, and the text of a signature."""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from relaxc.service.signature import MAX_DIM_CHARS, Dim

__all__ = [
    "OPERATORS",
    "computed",
    "dim_text",
    "identifier",
    "is_long",
    "is_static",
    "is_word",
    "names_in",
    "number_of",
    "product",
    "quotient",
    "renamed",
    "replaced",
    "same",
    "shared_names",
    "simplify",
    "told",
    "unique",
    "variables",
]

# What a dim may be computed with, in a file's dim_param and in a signature: Python's own syntax.
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "//", ast.Mod: "%"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2, "%": 2}
_FUNCTIONS = {"max", "min", "Max", "Min"}
_MAX_EXPRESSION_CHARS = 200
_MOST_TERMS = 512


class Sized(Protocol):
    """What is known of a model's sizes."""

    @property
    def analyzer(self) -> Any:
        """TVM's, with the bounds of names."""


def unique(hint: str, taken: Iterable[str]) -> str:
    """Return `hint` as an identifier that is not in `taken`."""
    base = identifier(hint)
    name, count, used = base, 1, set(taken)
    while name in used:
        name, count = f"{base}_{count}", count + 1
    return name


def identifier(text: str, taken: Collection[str] = ()) -> str:
    """Return `text` with everything that cannot be in a name replaced by underscores.

    A word that the text of a signature has another meaning for gets underscores behind it, such that it is not in
    `taken`.
    """
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    if is_word(name):
        name += "_"
        while name in taken:
            name += "_"
    return name if name and not name[0].isdigit() else f"d_{name}"


def is_word(name: str) -> bool:
    """Return whether a name is Python's, or a function of sizes."""
    return keyword.iskeyword(name) or name in _FUNCTIONS


def dim_of_text(text: str, taken: Collection[str] = ()) -> str:
    """Return a dim_param in normal form: a name, an expression, or else the text as an identifier.

    `taken` has the names that other dims use.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= _MAX_EXPRESSION_CHARS else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        tree = None
    if tree is None or not _is_arithmetic(tree):
        return identifier(text, taken)
    for each in ast.walk(tree):
        if isinstance(each, ast.Name):
            each.id = identifier(each.id, taken)
    return ast.unparse(tree).replace(" / ", " // ")


def _is_arithmetic(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in OPERATORS and _is_arithmetic(node.left) and _is_arithmetic(node.right)
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return isinstance(node, ast.Name) and node.id.isascii()


def is_static(dim: Any) -> bool:
    """Return whether a dim is a number."""
    return number_of(dim) is not None


def number_of(dim: Any) -> int | None:
    """Return a dim's number, None for a symbolic one."""
    if isinstance(dim, int):
        return dim
    return int(dim.value) if type(dim).__name__ == "IntImm" else None


def simplify(dim: Any, scope: Sized) -> Any:
    """Return a dim as an int where it is one, else the simplest expression that TVM finds."""
    number = number_of(dim)
    if number is not None:
        return number
    simple = scope.analyzer.simplify(dim)
    number = number_of(simple)
    return simple if number is None else number


def same(left: Any, right: Any, scope: Sized) -> bool:
    """Return whether two dims are equal for every value of the variables, as far as can be proved."""
    a, b = number_of(left), number_of(right)
    if a is not None and b is not None:
        return a == b
    return bool(scope.analyzer.can_prove_equal(left, right))


def variables(dim: Any) -> set[str]:
    """Return the names that a TVM expression uses."""
    from tvm import tirx

    return set() if number_of(dim) is not None else {variable.name for variable in tirx.analysis.undefined_vars(dim)}


def shared_names(left: Any, right: Any) -> set[str]:
    """Return the symbolic names that two dims both use."""
    return variables(left) & variables(right)


def product(dims: Iterable[Any]) -> Any:
    """Return the product of dims; 1 for none."""
    result: Any = 1
    for dim in dims:
        result = dim if isinstance(result, int) and result == 1 else result * dim
    return result


def quotient(whole: Sequence[Any], parts: Sequence[Any], scope: Sized) -> Any:
    """Return `∏ whole // ∏ parts`, equal factors cancelled first so that no symbolic division is left where none is
    needed.
    """
    rest = list(whole)
    left_over = []
    for part in parts:
        found = next((i for i, dim in enumerate(rest) if same(dim, part, scope)), None)
        if found is None:
            left_over.append(part)
        else:
            rest.pop(found)
    numerator, denominator = product(rest), product(left_over)
    if number_of(denominator) == 1:
        return simplify(numerator, scope)
    return simplify(numerator // denominator, scope)


def dim_text(dim: Any) -> Dim:
    """Return a dim for a signature: an int, or Python text over names (`2 * seq + 1`, `max(a, b)`).

    Raise NotImplementedError for what has none, or one that is longer than readers take.
    """
    number = number_of(dim)
    if number is not None:
        return number
    text = "" if is_long(dim) else _text(dim)[0]
    if not text or len(text) > MAX_DIM_CHARS:
        raise NotImplementedError(f"a size of more than {MAX_DIM_CHARS} characters, which a signature does not hold")
    return text


def is_long(dim: Any) -> bool:
    """Return whether a size has more terms than are computed with: of sums of sizes with their halves, n layers deep,
    there are 2^n, and TVM takes 3^n of time for what it calls simple.
    """
    count, pending = 0, [dim]
    while pending and count <= _MOST_TERMS:
        each = pending.pop()
        count += 1
        if hasattr(each, "a") and hasattr(each, "b"):
            pending += [each.a, each.b]
    return count > _MOST_TERMS


def told(dim: Any) -> Dim:
    """Return a dim for a message: as in a signature, else as TVM writes it."""
    try:
        return dim_text(dim)
    except NotImplementedError:
        return "a size of many terms" if is_long(dim) else str(dim)


def _text(dim: Any) -> tuple[str, int]:
    """Text and binding strength."""
    kind = type(dim).__name__
    if kind == "Var":
        return str(dim.name), 3
    number = number_of(dim)
    if number is not None:
        return str(number), 3 if number >= 0 else 0
    symbol = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"}.get(kind)
    if symbol is not None:
        strength = _PRECEDENCE[symbol]
        left, right = _text(dim.a), _text(dim.b)
        # All of these associate to the left, so an equal strength on the right needs parentheses.
        return f"{_wrap(left, strength)} {symbol} {_wrap(right, strength + 1)}", strength
    if kind in ("Max", "Min"):
        return f"{kind.lower()}({_text(dim.a)[0]}, {_text(dim.b)[0]})", 3
    raise NotImplementedError(f"a size that is a {kind} has no text")


def _wrap(part: tuple[str, int], strength: int) -> str:
    return part[0] if part[1] >= strength else f"({part[0]})"


def names_in(dim: Dim) -> set[str]:
    """Return the symbolic names in a dim of a signature."""
    if isinstance(dim, int):
        return set()
    return {n.id for n in ast.walk(ast.parse(dim, mode="eval")) if isinstance(n, ast.Name)} - {"max", "min"}


def replaced(dim: Dim, swap: dict[str, Dim]) -> Dim:
    """Return a dim with names replaced by others or by numbers, computed where nothing symbolic is left."""
    if isinstance(dim, int) or not names_in(dim) & swap.keys():
        return dim
    text = re.sub(r"\b[A-Za-z_]\w*", lambda m: f"({swap[m[0]]})" if m[0] in swap else m[0], dim)
    tree = ast.parse(text, mode="eval")
    return ast.unparse(tree) if names_in(text) else int(computed(tree.body, {}))


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a text with other names."""
    return re.sub(r"\b[A-Za-z_]\w*", lambda m: names.get(m[0], m[0]), text)


def computed(node: ast.expr, sizes: Mapping[str, Any]) -> Any:
    """Return what a parsed dim is, for names that are numbers or arrays of these."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](computed(left, sizes), computed(right, sizes))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -computed(operand, sizes)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[left, right]):
            import numpy as np

            pick = np.minimum if name == "min" else np.maximum
            return pick(computed(left, sizes), computed(right, sizes))
    raise AssertionError(f"a dim with {ast.dump(node)}")


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

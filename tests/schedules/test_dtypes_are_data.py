"""Precision is data: in `schedules/cpu`, element types and their sizes come from what a template matched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "schedules" / "cpu"
FILES = sorted(ROOT.rglob("*.py"))

# A template may say which types it multiplies, in an assignment to this name.
DECLARATION = "dtypes"

DTYPE = re.compile(r"(u?int|float|bfloat|fp|bf)\d+|bool")
ELEMENT_BYTES = (4, 8, 16)

PENDING: dict[str, str] = {}


def ambient(tree: ast.AST) -> Iterator[str]:
    """What a syntax tree says of element types that nothing told it: dtype names, literal sizes, literal lanes."""
    declared = {
        id(inside)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and _assigns(node, DECLARATION)
        for inside in ast.walk(node)
    }
    for node in ast.walk(tree):
        found = None if id(node) in declared else _found(node)
        if found is not None:
            yield f"line {node.lineno}: {found}"  # type: ignore[attr-defined]


def _assigns(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _found(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and DTYPE.fullmatch(node.value):
        return f"the dtype {node.value}"
    if isinstance(node, ast.Call) and _name(node.func) == "lanes" and any(map(_is_int, node.args)):
        return f"lanes of a literal width: {ast.unparse(node)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sizes = [side for side in (node.left, node.right) if _is_int(side) and side.value in ELEMENT_BYTES]  # type: ignore[attr-defined]
        return f"a literal element size: {ast.unparse(node)}" if sizes else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and _is_int(node.right):
        of_bits = "bits" in ast.unparse(node.left)
        return f"bytes of bits by hand: {ast.unparse(node)}" if of_bits else None
    return None


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_int(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dtypes_and_element_sizes_are_data(path: Path) -> None:
    found = list(ambient(ast.parse(path.read_text())))
    if str(path.relative_to(ROOT)) in PENDING:
        assert found, f"{path.name} is clean: take it out of PENDING"
        return
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ('x = "bfloat16"', "the dtype bfloat16"),
        ('if dtype != "bool": pass', "the dtype bool"),
        ("n = cpu.lanes(32)", "lanes of a literal width"),
        ("size = 4 * depth", "a literal element size"),
        ("size = rows * depth * 4", "a literal element size"),
        ("size = dtype_bits(x) // 8", "bytes of bits by hand"),
    ],
)
def test_it_finds(code: str, what: str) -> None:
    (found,) = ambient(ast.parse(code))
    assert what in found


@pytest.mark.parametrize(
    "code",
    [
        'dtypes = (("int8", "int8", "int32"),)',
        'dtypes: tuple[str, ...] = ("float32",)',
        '"""Sums bfloat16 in float32."""',
        "n = cpu.lanes(dtype_bits(dtype))",
        "half = cpu.l2_bytes // 4",
        "rows = 2 * vectors",
    ],
)
def test_it_lets_pass(code: str) -> None:
    assert not list(ambient(ast.parse(code)))


def test_what_is_pending_exists() -> None:
    assert set(PENDING) <= {str(path.relative_to(ROOT)) for path in FILES}

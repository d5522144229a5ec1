"""Constants keep their dtype: without one `relax.const` makes float32 of float64, and int32 of int64."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
TENSORS = {"tensor", "tensor_of", "from_dlpack"}
"""What makes TVM's own tensors, whose dtype it keeps."""


def test_every_constant_names_its_dtype_or_is_a_tensor() -> None:
    found = []
    for path in [*(ROOT / "service").rglob("*.py"), *(ROOT / "schedules").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "relax.const") or len(node.args) > 1:
                continue
            given = node.args[0].func if isinstance(node.args[0], ast.Call) else node.args[0]
            if ast.unparse(given).rpartition(".")[2] not in TENSORS and not node.keywords:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not found, "relax.const makes 32 bits of 64: name the dtype, or use `constant`"

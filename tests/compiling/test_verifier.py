"""What is not compared, and the reason that is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.compiler import prepare
from service.compiling.verifier import verify
from service.signature import Condition, DimBounds, Signature, TensorSpec
from tests.frontend.onnx.harness import model, node, value, write


def _never(*_: Any) -> Any:
    raise AssertionError("there is nothing to run")


def test_without_sizes_to_run_with_there_is_a_reason(tmp_path: Path) -> None:
    path = write(tmp_path, model([node("Sqrt", ["x"], ["y"])], [value("x", ["n", 3])], [value("y", ["n", 3])]))
    x, y = (TensorSpec(name, "float32", ("n", 3)) for name in "xy")
    signature = Signature((x,), (y,), (("n", DimBounds()),), (), (Condition("n * n == 1000003", ""),))
    found = verify(prepare(path), signature, _never, _never)
    assert found == "no sizes were found of which all of this holds: n * n == 1000003"

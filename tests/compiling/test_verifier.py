"""What is not compared, and the reason that is given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.compiler import prepare
from relaxc.service.compiling.verifier import verify
from relaxc.service.errors import InvalidShape
from relaxc.service.request import CompileOptions
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec
from tests.frontend.onnx.harness import model, node, value, write


def _never(*_: Any) -> Any:
    raise AssertionError("there is nothing to run")


def test_without_sizes_to_run_with_there_is_an_error_or_a_reason(tmp_path: Path) -> None:
    """Calls of it may all be refused: to say nothing, with exit 0, is for who asked for no verdict."""
    path = write(tmp_path, model([node("Sqrt", ["x"], ["y"])], [value("x", ["n", 3])], [value("y", ["n", 3])]))
    x, y = (TensorSpec(name, "float32", ("n", 3)) for name in "xy")
    signature = Signature((x,), (y,), (("n", DimBounds()),), (), (Condition("n * n == 1000003", ""),))
    told = "no sizes were found of which all of this holds: n * n == 1000003"
    with pytest.raises(InvalidShape, match=re.escape(f"it cannot be verified: {told}")) as caught:
        verify(prepare(path), signature, _never, _never)
    assert "--shape" in str(caught.value.remedy) and "--no-verify" in str(caught.value.remedy)
    assert verify(prepare(path, options=CompileOptions(verify=False)), signature, _never, _never) == told

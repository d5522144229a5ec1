"""Patches, grids, caches, determinants, orders and remainders beside ONNX Runtime, or ONNX's evaluator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.frontend.onnx.harness import INT64, check, compiled, model, node, value, write

RNG = np.random.default_rng(0)
UINT64, INT32, FLOAT16 = TensorProto.UINT64, TensorProto.INT32, TensorProto.FLOAT16


def _w(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


CASES: dict[str, Callable[[], tuple[list[Any], list[Any], dict[str, Any]]]] = {
    "blocks": lambda: (
        [node("Col2Im", ["x", "image", "block"], ["y"], strides=[2, 1], pads=[1, 0, 0, 2], dilations=[1, 2])],
        [value("x", ["b", 12, 12])], {"image": np.array([6, 6]), "block": np.array([2, 3])},
    ),
    "deformed": lambda: (
        [node("DeformConv", ["x", "w", "o", "c", "m"], ["y"], group=2, offset_group=2, strides=[2, 1],
              pads=[1, 0, 1, 1], dilations=[1, 2])],
        [value("x", ["b", 4, 7, 6]), value("o", ["b", 24, 4, 5]), value("m", ["b", 12, 4, 5])],
        {"w": _w(6, 2, 3, 2), "c": _w(6)},
    ),
    "grids": lambda: (
        [node("AffineGrid", ["t", "size"], ["y"]), node("AffineGrid", ["t", "size"], ["z"], align_corners=1)],
        [value("t", [2, 3, 4])], {"size": np.array([2, 3, 4, 5, 6])},
    ),
    "caches": lambda: (
        [node("TensorScatter", ["past_kv", "now", "at"], ["present_kv"], mode="circular"),
         node("TensorScatter", ["past_kv", "now"], ["y"])],
        [value("past_kv", ["b", 3, 8, 4]), value("now", ["b", 3, 2, 4]), value("at", ["b"], INT64)], {},
    ),
    "determinants": lambda: (
        [node("Det", ["x"], ["y"]), node("Det", ["one"], ["z"])],
        [value("x", ["b", 5, 5]), value("one", [2, 1, 1])], {},
    ),
    "orders": lambda: (
        [node("TopK", ["x", "k"], ["y", "places"])], [value("x", [3, 7], UINT64)], {"k": np.array([4])},
    ),
    "bits": lambda: (
        [node("BitCast", ["x"], ["y"], to=INT32), node("BitCast", ["y"], ["z"], to=TensorProto.FLOAT)],
        [value("x", ["b", 3])], {},
    ),
    "optionals": lambda: (
        [node("OptionalHasElement", ["x"], ["y"]), node("OptionalGetElement", ["x"], ["z"])], [value("x", ["b"])], {},
    ),
}  # fmt: skip
OPSETS = {"caches": 24, "bits": 26}
KINDS = {"places": INT64, "optionals y": TensorProto.BOOL, "orders y": UINT64, "bits y": INT32}


@pytest.mark.parametrize("case", CASES)
def test_it_gives_what_the_reference_gives(case: str, tmp_path: Path) -> None:
    nodes, inputs, weights = CASES[case]()
    outs = [
        helper.make_tensor_value_info(name, KINDS.get(f"{case} {name}", KINDS.get(name, TensorProto.FLOAT)), None)
        for each in nodes
        for name in each.output
    ]
    check(write(tmp_path, model(nodes, inputs, outs, opset=OPSETS.get(case, 22), **weights)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_remainders_of_zeros_and_infinities(dtype: str, tmp_path: Path) -> None:
    """As numpy has them, the sign of a 0 among it."""
    kind = FLOAT16 if dtype == "float16" else TensorProto.FLOAT
    values = np.array([0, -0.0, 1.5, -1.5, 6, -6, np.inf, -np.inf, np.nan], dtype)
    x, m = (each.ravel() for each in np.meshgrid(values, values))
    proto = model([node("Mod", ["x", "m"], ["y"])], [value("x", [81], kind), value("m", [81], kind)],
                  [value("y", [81], kind)])  # fmt: skip
    session = compiled(tmp_path, proto)
    with np.errstate(invalid="ignore", divide="ignore"):
        want = np.mod(x, m)
    got = session(x=x, m=m)["y"]
    np.testing.assert_array_equal(got, want)
    kept = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(want[kept]))

"""A float32 network may round to 16 bits and back, and does so in the artifact."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from service import compiler
from service.passes.legalize.legalize import Legalize
from service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.passes.graphs import compute, graph

LOW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def test_a_cast_to_bfloat16_rounds_to_even_and_keeps_nan() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    ordered = np.sort(every[np.isfinite(every)].astype(np.float64))
    values = np.concatenate([every, ((ordered[1:] + ordered[:-1]) / 2).astype(np.float32)])
    near = np.nextafter(values[np.isfinite(values)], np.float32(0))
    values = np.concatenate([values, near, np.float32([3.4e38, -3.4e38])])

    def cast(x):
        return x.astype("bfloat16").astype("float32")

    (got,) = compute(Legalize([], rounds=True)(graph(cast, x=values.shape)), values)
    with np.errstate(invalid="ignore"):  # numpy's cast of a NaN
        want = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int16", "int32", "int64"])
def test_other_numbers_are_rounded_too(dtype: str) -> None:
    values = (np.random.default_rng(0).standard_normal(4000) * 9000).astype(dtype)

    def cast(x):
        return x.astype("bfloat16").astype("float32")

    (got,) = compute(Legalize([], rounds=True)(graph(cast, x=(dtype, values.shape))), values)
    np.testing.assert_array_equal(got, values.astype("float32").astype(ml_dtypes.bfloat16).astype("float32"))


@pytest.mark.parametrize("low", LOW)
def test_a_network_in_float32_rounds_where_it_says_so(tmp_path: Path, low: str) -> None:
    nodes = [
        node("Mul", ["x", "three"], ["a"]),
        node("Cast", ["a"], ["b"], to=getattr(TensorProto, low.upper())),
        node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        node("Add", ["c", "x"], ["y"]),
    ]
    path = write(tmp_path, model(nodes, [value("x", [4, 64])], [value("y", [4, 64])], three=np.float32(3)))
    compiler.run(compiler.prepare(path), tmp_path, lambda event: None)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype("float32")
    np.testing.assert_array_equal(load(tmp_path / "model.so")(x=x)["y"], (3 * x).astype(LOW[low]).astype("float32") + x)

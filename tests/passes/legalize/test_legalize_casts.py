"""A float32 network may round to 16 bits and back, and does so in the artifact."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from relaxc.service import compiler
from relaxc.service.passes.legalize.legalize import Legalize
from relaxc.service.request import CompileOptions
from relaxc.service.runtime import load
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


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.sampled("83-int8", "83-uint8", "77777777777777-int32")
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("factor", [83, -83, 77777777777777])
def test_ranges_wrap_in_a_cast(tmp_path: Path, factor: int, dtype: str) -> None:
    """`range(n) * 83` in 8 bits, and wider again, was 332 for 76; each result has its range, or the cast is stored."""
    others = [other for other in INTEGERS if other != dtype]
    nodes = [node("Shape", ["x"], ["s"]), node("Squeeze", ["s"], ["n"])]
    weights = {"one": np.int64(1), "factor": np.int64(factor), "hundred": np.array(100, dtype)}
    for first, name in enumerate([*others, "rest"]):
        weights[f"first {name}"] = np.int64(first)
        nodes += [
            node("Add", ["n", f"first {name}"], [f"end {name}"]),
            node("Range", [f"first {name}", f"end {name}", "one"], [f"range {name}"]),
            node("Mul", [f"range {name}", "factor"], [f"product {name}"]),
            node("Cast", [f"product {name}"], [f"narrow {name}"], to=getattr(TensorProto, dtype.upper())),
            node("Cast", [f"narrow {name}"], [name], to=getattr(TensorProto, name.upper()))
            if name in others
            else node("Mod", ["narrow rest", "hundred"], [name]),
        ]
    outputs = [value(name, ["n"], getattr(TensorProto, name.upper())) for name in others]
    outputs.append(value("rest", ["n"], getattr(TensorProto, dtype.upper())))
    path = write(tmp_path, model(nodes, [value("x", ["n"])], outputs, **weights))
    compiler.run(compiler.prepare(path, options=CompileOptions(verify=False)), tmp_path, lambda event: None)
    got = load(tmp_path / "model.so")(x=np.zeros(300, "float32"))
    for first, name in enumerate([*others, "rest"]):
        narrow = (np.arange(first, 300 + first) * factor).astype(dtype)
        np.testing.assert_array_equal(
            got[name], narrow.astype(name) if name in others else narrow % narrow.dtype.type(100)
        )


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_out_of_range_wrap_in_integers_of_few_bits_and_unsigned_ones(tmp_path: Path, kind: str) -> None:
    dtypes = ("int8", "uint8", "int16", "uint16", "uint32", "uint64")
    nodes = [node("Cast", ["x"], [name], to=getattr(TensorProto, name.upper())) for name in dtypes]
    outputs = [value(name, ["n"], getattr(TensorProto, name.upper())) for name in dtypes]
    given = value("x", ["n"], {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}.get(kind, 10))
    request = compiler.prepare(write(tmp_path, model(nodes, [given], outputs)), target="x86-64-v3")
    compiler.run(request, tmp_path, lambda event: None)
    few = [-50, 60000, 300, -1.5, 0.75, -32769, 255.9, -129]
    many = few if kind == "float16" else [*few, 70000, 3e9, 1e19, 2.0**31]
    x = np.resize(np.array(many, kind), 67)
    x = np.where(np.isfinite(x), x, np.array(1, kind))
    got = load(tmp_path / "model.so")(x=x)
    with np.errstate(invalid="ignore"):  # C leaves these open, and x86 and ONNX Runtime do not
        for name in dtypes:
            np.testing.assert_array_equal(got[name], x.astype(name), err_msg=name)

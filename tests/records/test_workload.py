"""Workloads: equal for what one schedule serves, in every process and model, and for nothing else."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx

from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.records.files import read
from relaxc.service.records.record import Workload
from relaxc.service.records.sources import SHIPPED
from relaxc.service.records.workload import describe
from relaxc.service.request import CompileOptions
from tests.passes.graphs import graph, weights
from tests.test_layers import ROOT


def product(
    m: Any = 8, n: int = 16, k: int = 32, *, dtype: str = "float32", names: str = "ABC", block: str = "matmul"
) -> Any:
    """C = A @ B as a PrimFunc."""
    a, b = te.placeholder((m, k), dtype, names[0]), te.placeholder((k, n), dtype, names[1])
    r = te.reduce_axis((0, k), names[2])
    return te.create_prim_func([a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), block)])


def digest(func: Any) -> str:
    return describe(func).digest


USUAL = digest(product())

SAME = {
    "the name of the function": lambda: product().with_attr("global_symbol", "other"),
    "how it may be fused": lambda: product().with_attr("op_pattern", 4),
    "the names of buffers and loops": lambda: product(names="XYZ"),
    "the name of a block": lambda: product(block="conv2d"),
}
DIFFERENT = {
    "a size": lambda: product(n=17),
    "the dtype": lambda: product(dtype="float16"),
    "an attribute that a template reads": lambda: product().with_attr("relaxc.masked_rows", "zero"),
    "a symbolic size": lambda: product(tirx.Var("n", "int64")),
    "indices of another width": lambda: product(tirx.IntImm("int64", 8)),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_what_does_not_count(make: Any) -> None:
    assert digest(make()) == USUAL


@pytest.mark.parametrize("make", DIFFERENT.values(), ids=DIFFERENT)
def test_what_counts(make: Any) -> None:
    assert digest(make()) != USUAL


def test_a_constant_counts() -> None:
    def scaled(factor: float) -> Any:
        x = te.placeholder((8,), "float32")
        return te.create_prim_func([x, te.compute((8,), lambda i: x[i] * factor, "scale")])

    assert digest(scaled(2.0)) != digest(scaled(3.0)) == digest(scaled(3.0))


def test_the_names_of_symbolic_sizes_do_not_count() -> None:
    one, other = (describe(product(tirx.Var(name, "int64") * 2 + 1)) for name in ("n", "sequence"))
    assert one == other and one.shapes == "a*2+1x32 32x16 a*2+1x16"
    assert describe(product(tirx.Var("n", "int64"))).shapes == "ax32 32x16 ax16"


def test_dtypes_and_shapes() -> None:
    x, i = te.placeholder((4, 5), "float16", "x"), te.placeholder((3,), "int64", "i")
    gathered = te.compute((3, 5), lambda a, b: x[i[a], b], "take")
    found = describe(te.create_prim_func([x, i, gathered]))
    assert (found.dtype, found.shapes) == ("float16+int64", "4x5 3 3x5")
    scalar = te.placeholder((), "float32", "s")
    assert describe(te.create_prim_func([scalar, te.compute((2,), lambda a: scalar(), "fill")])).shapes == "scalar 2"


@pytest.mark.slow
def test_another_process_finds_the_same() -> None:
    code = "from tests.records.test_workload import product, digest; print(digest(product()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == USUAL


def test_two_models_share_the_workload_of_an_equal_operator() -> None:
    """Under other names, beside other operators, the same product with the same epilogue."""
    spec = resolve("x86-64-v4")

    def rows(build: Any, **inputs: Any) -> dict[str, str]:
        optimized = optimize(graph(build, **inputs), to_tvm(spec), CompileOptions())
        return {row["workload"]: row["function"] for row in schedule(optimized.module, spec).report}

    op = relax.op
    one = rows(lambda x, w: op.nn.relu(op.matmul(x, w)), x=(32, 64), w=(64, 48))
    other = rows(lambda a, b, c: op.matmul(op.nn.relu(op.matmul(op.exp(a), b)), c), a=(32, 64), b=(64, 48), c=(48, 8))
    shared = set(one) & set(other)
    assert len(one) == 1 and shared == set(one)
    assert "matmul" in one[shared.pop()]


def _rows_network(x: Any) -> Any:
    """A convolution in blocks of channels, as wide as vectors, and rows of it: means and a norm."""
    op, emit = relax.op, relax.BlockBuilder.current().emit
    image = emit(op.nn.relu(op.nn.conv2d(x, weights(24, 3, 3, 3))))
    mean = emit(op.mean(image, [2, 3]))
    norm = op.nn.layer_norm(emit(op.permute_dims(image, [0, 2, 3, 1])), weights(24), weights(24, seed=1), axes=[-1])
    return mean, norm


def test_rows_have_the_same_workloads_for_every_width_of_vectors() -> None:
    """What layout passes do before them is not in their names: docs/decisions/023."""

    def rows(name: str) -> set[tuple[str, str]]:
        spec = resolve(name)
        module = optimize(graph(_rows_network, x=(1, 3, 8, 8)), to_tvm(spec), CompileOptions()).module
        return {(row["workload"], row["shapes"]) for row in schedule(module, spec).report if row["rule"] == "cpu.rows"}

    narrow, wide = rows("x86-64-v2"), rows("x86-64-v4")
    assert len(narrow) == 2 and narrow == wide


def _norm(epsilon: float, *x: Any) -> Any:
    return relax.op.nn.layer_norm(*x, axes=[-1], epsilon=epsilon)


SHIPPED_ROWS = {
    "mean of ConvNeXt": (lambda image: relax.op.mean(image, [2, 3]), {"image": (1, 768, 7, 7)}),
    "layer norm of BERT": (partial(_norm, 1e-12), {"x": (1, 128, 768), "gamma": (768,), "beta": (768,)}),
    "the same in ONNX": (partial(_norm, float(np.float32(1e-12))), {"x": (1, 128, 768), "g": (768,), "b": (768,)}),
}


@pytest.mark.parametrize("name", SHIPPED_ROWS)
def test_records_of_rows_that_come_with_relaxc_are_found(name: str) -> None:
    """What names a kernel may not change without its records."""
    build, shapes = SHIPPED_ROWS[name]
    optimized = optimize(graph(build, **shapes), to_tvm(resolve("x86-64-v4")), CompileOptions()).module
    [func] = [func for func in optimized.functions.values() if isinstance(func, tirx.PrimFunc)]
    assert describe(func) in {Workload(one.workload, one.dtype, one.shapes, one.operator) for one in read(SHIPPED)}

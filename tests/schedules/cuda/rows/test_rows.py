"""`cuda.rows`: what it takes and declines, its code, and its numbers on simulated threads."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm_ffi
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from benchmarks.gpu import rows_cases
from benchmarks.gpu.fused import one_prim_func, prim_func_of
from benchmarks.gpu.rows_cases import RowsCase
from benchmarks.gpu.rows_device import tolerance
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.rows.form import match
from relaxc.schedules.cuda.rows.rows import RowReductions
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.legalize.legalize_norms import NORMS
from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED
from tests.schedules.cuda.simulated import run

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = RowReductions()


def prim_func(kind, shape, out="float16"):
    """The norm or softmax of the last axis, stored as `out`."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    gamma, beta = (relax.Var(name, relax.TensorType(shape[-1:], "float32")) for name in ("gamma", "beta"))
    build = {
        "layer_norm": lambda: op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=1e-5),
        "rms_norm": lambda: op.nn.rms_norm(x, gamma, axes=[-1], epsilon=1e-5),
        "softmax": lambda: op.nn.softmax(x, -1),
        "softmax of columns": lambda: op.nn.softmax(x, 0),
        "sum": lambda: op.sum(x, -1),
        "product": lambda: op.sum(op.multiply(x, gamma), -1),
        "relu": lambda: op.nn.relu(x),
    }[kind]
    block = relax.BlockBuilder()
    with block.function("main", [x, gamma, beta]):
        with block.dataflow():
            result = block.emit(build())
            result = block.emit_output(op.astype(result, out) if out != "float32" else result)
        block.emit_func_output(result)
    return prim_func_of(block.get(), NORMS)


@pytest.mark.parametrize(("kind", "sums", "operands"), [("layer_norm", 2, 2), ("rms_norm", 1, 1), ("softmax", 2, 0)])
@pytest.mark.parametrize("out", ["float16", "float32"])
def test_it_takes_norms_and_softmaxes(kind, sums, operands, out):
    func = prim_func(kind, (3, 5, 264), out)
    found = match(func)
    assert not isinstance(found, Declined)
    assert (found.rows, found.columns, found.sums, len(found.operands)) == (15, 264, sums, operands)
    made = RULE.apply(func, TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, TARGET, made.parameters).func)
    first = next(rule for rule in RULES if not isinstance(rule.apply(func, TARGET), Declined))
    assert first.name == RULE.name


@pytest.mark.parametrize(
    ("kind", "shape", "reason"),
    [
        ("softmax", (4, 12), "multiples of 8"),
        ("softmax of columns", (64, 64), "rows"),
        ("sum", (1, 64), "one row"),
        ("product", (64, 64), "product with a vector"),
        ("relu", (64, 64), "reduces nothing"),
        ("layer_norm", (2, 1 << 17), "longer than a block"),
    ],
)
def test_it_declines(kind, shape, reason):
    func = prim_func(kind, shape, "float32")
    result = RULE.apply(func, TARGET)
    assert isinstance(result, Declined) and re.search(reason, result.reason)
    assert isinstance(RULE.points(func, TARGET), Declined)


@T.prim_func(s_tir=True)
def sums_of_columns(x: T.Buffer((8, 8, 64), "float32"), out: T.Buffer((8, 8, 64), "float32")):
    sums = T.sblock_alloc_buffer((8, 8), "float32")
    for i, j, k in T.grid(8, 8, 64):
        with T.sblock("sum"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                sums[vj, vi] = T.float32(0)
            sums[vj, vi] = sums[vj, vi] + x[vi, vj, vk]
    for i, j, k in T.grid(8, 8, 64):
        with T.sblock("out"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            out[vi, vj, vk] = x[vi, vj, vk] - sums[vi, vj]


def test_transposed_sums_are_declined():
    result = RULE.apply(sums_of_columns, TARGET)
    assert isinstance(result, Declined) and "stored elsewhere" in result.reason


def test_every_choice_holds_a_row():
    for shape in ((1, 8), (4096, 768), (128, 768), (9, 65536)):
        func = prim_func("softmax", shape)
        space = RULE.points(func, TARGET).values["threads"]
        assert RULE.apply(func, TARGET).parameters["threads"] in space
        assert all(threads * 64 >= shape[-1] for threads in space)


def reference(case, given):
    """`case` in fp64, from arrays by name."""
    x = given["x"].astype("float64") + (given["r"].astype("float64") if "r" in given else 0)
    x = x * given.get("scale", 1)
    if case.kind == "softmax":
        power = np.exp(x - x.max(-1, keepdims=True))
        return power / power.sum(-1, keepdims=True)
    if case.kind == "rms_norm":
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * given["gamma"]
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * given["gamma"] + given["beta"]


@pytest.mark.parametrize(
    ("case", "point"),
    [
        (RowsCase("layer_norm", (3, 37, 264), "float32", "float16", "residual"), (32, 2, 4)),
        pytest.param(RowsCase("layer_norm", (5, 264), "float16", "float32"), (16, 1, 1), marks=pytest.mark.slow),
        (RowsCase("rms_norm", (7, 768), "bfloat16", "bfloat16", "scale"), (96, 1, 2)),
        pytest.param(RowsCase("softmax", (1, 1024), "float32", "float32"), (64, 4, 2), marks=pytest.mark.slow),
        pytest.param(
            RowsCase("layer_norm", (2, 4096), "float32", "float16", "scale"), (64, 1, 2), marks=pytest.mark.slow
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, RowsCase) else str(value),
)
def test_the_text_gives_the_numbers_on_the_cpu(case, point, tmp_path):
    """The last one has more operands than registers hold before the sums."""
    func, draw = rows_cases.prim_func(case), np.random.default_rng(0)
    kernel = RULE.kernel_of(match(func), dict(zip(("threads", "each", "rows"), point, strict=True)), gpu_of(TARGET))
    arrays = [draw.standard_normal([int(d) for d in b.shape]).astype(str(b.dtype)) for b in func.params]
    by_name = dict(zip((str(b.name) for b in func.params), arrays, strict=True))
    run(kernel, [arrays[[b.same_as(p) for p in func.params].index(True)] for b in kernel.pointers], tmp_path)
    made = by_name[str(match(func).out.name)].astype("float64")
    wanted = reference(case, by_name)
    assert np.linalg.norm(made - wanted) <= tolerance({"out": case.out}) * np.linalg.norm(wanted)


@pytest.mark.parametrize("out", ["uint8", "int8"])
def test_a_quantized_norm_is_bytes(out, tmp_path):
    """As before a linear layer of a quantized network, in the same kernel."""
    x = relax.Var("x", relax.TensorType((3, 5, 48), "float32"))
    gamma, beta = (relax.Var(name, relax.TensorType((48,), "float32")) for name in ("gamma", "beta"))
    scale, zero = (relax.Var(n, relax.TensorType((), d)) for n, d in (("s", "float32"), ("z", out)))
    block = relax.BlockBuilder()
    with block.function("main", [x, gamma, beta, scale, zero]):
        with block.dataflow():
            made = block.emit(op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=1e-5))
            result = block.emit_output(op.quantize(made, scale, zero, axis=-1, out_dtype=out))
        block.emit_func_output(result)
    func = prim_func_of(block.get(), {**NORMS, **QUANTIZED})
    form, gpu = RULE.match(func), gpu_of(TARGET)
    assert not isinstance(form, Declined), form
    kernel = RULE.kernel_of(form, RULE.default(form, gpu), gpu)
    draw = np.random.default_rng(0)
    given = [draw.standard_normal(shape).astype("float32") for shape in ((3, 5, 48), (48,), (48,))]
    arrays = [*given, np.array(0.02, "float32"), np.array(7, out), np.zeros((3, 5, 48), out)]
    run(kernel, [arrays[[b.same_as(p) for p in func.params].index(True)] for b in kernel.pointers], tmp_path)
    wide = given[0].astype("float64")
    normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    limits = np.iinfo(out)
    wanted = np.clip(np.rint((normal * given[1] + given[2]) / 0.02) + 7, limits.min, limits.max)
    off = np.abs(arrays[-1].astype(int) - wanted)
    assert off.max() <= 1 and (off > 0).mean() < 0.02 and len(np.unique(arrays[-1])) > 50


_REDUCED = {
    "amax": (lambda x: op.max(op.abs(x), -1), lambda x: np.abs(x).max(-1)),
    "scale": (
        lambda x: op.divide(op.max(op.abs(x), -1, keepdims=True), relax.const(448.0, "float32")),
        lambda x: np.abs(x).max(-1, keepdims=True) / 448,
    ),
    "mean": (lambda x: op.mean(op.astype(x, "float32"), -1), lambda x: x.mean(-1)),
    "variance": (lambda x: op.variance(x, -1, keepdims=True), lambda x: x.var(-1, keepdims=True)),
    "rounded": (lambda x: op.astype(op.sum(op.astype(x, "float32"), -1), "bfloat16"), lambda x: x.sum(-1)),
}  # fmt: skip
"""What a row is reduced to, as a graph says it and as numpy does."""


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        ("amax", (3, 5, 264), "float16"),
        ("scale", (37, 768), "float32"),
        ("mean", (9, 64), "bfloat16"),
        ("variance", (2, 7, 128), "float32"),
        ("rounded", (33, 40), "float16"),
    ],
)
def test_one_value_of_each_row(kind, shape, dtype, tmp_path):
    """As the scales of a dynamic quantization are."""
    graph, wanted_of = _REDUCED[kind]
    func = one_prim_func([shape], dtype, lambda operands: graph(operands[0]))
    first = next(rule for rule in RULES if not isinstance(rule.apply(func, TARGET), Declined))
    assert first.name == RULE.name, RULE.apply(func, TARGET)
    form, gpu = RULE.match(func), gpu_of(TARGET)
    given = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for point in (RULE.default(form, gpu), {"threads": 32, "each": 2, "rows": 4}):
        made = np.zeros([int(d) for d in form.out.shape], str(form.out.dtype))
        run(RULE.kernel_of(form, point, gpu), [given, made], tmp_path)
        wanted = wanted_of(given.astype("float64"))
        tolerance_of = {"float32": 1e-6, "float16": 0, "bfloat16": 8e-3}[str(form.out.dtype)]
        assert np.abs(made.astype("float64") - wanted).max() <= tolerance_of * np.abs(wanted).max()

"""`cuda.rows_sm90`: what it takes and declines, and its code. Its numbers need a GPU."""

from __future__ import annotations

import re

import pytest
import tvm_ffi
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from benchmarks.gpu.fused import prim_func_of
from schedules.cuda import RULES
from schedules.cuda.common.kernel import TEXT_KERNEL
from schedules.cuda.rows.form import match
from schedules.cuda.rows.rows_sm90 import RowsSm90
from schedules.template import Declined, Schedule
from service.lowering.target import resolve, to_tvm
from service.passes.legalize.legalize_norms import NORMS

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = RowsSm90()


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
        ("sum", (64, 64), "not made of the row"),
        ("relu", (64, 64), "reduces nothing"),
        ("layer_norm", (2, 1 << 17), "longer than a block"),
    ],
)
def test_it_declines(kind, shape, reason):
    func = prim_func(kind, shape, "float32")
    result = RULE.apply(func, TARGET)
    assert isinstance(result, Declined) and re.search(reason, result.reason)
    assert isinstance(RULE.choices(func, TARGET), Declined)


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


@T.prim_func(s_tir=True)
def sums_of_more(x: T.Buffer((8, 64), "float32"), y: T.Buffer((64,), "float32"), out: T.Buffer((8, 64), "float32")):
    sums = T.sblock_alloc_buffer((8,), "float32")
    for i, k in T.grid(8, 64):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                sums[vi] = T.float32(0)
            sums[vi] = sums[vi] + x[vi, vk] * y[vk]
    for i, k in T.grid(8, 64):
        with T.sblock("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            out[vi, vk] = x[vi, vk] - sums[vi]


@T.prim_func(s_tir=True)
def rows_of_16_bits(x: T.Buffer((8, 64), "float16"), out: T.Buffer((8, 64), "float32")):
    sums = T.sblock_alloc_buffer((8,), "float32")
    for i, k in T.grid(8, 64):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                sums[vi] = T.float32(0)
            sums[vi] = sums[vi] + T.Cast("float32", x[vi, vk])
    for i, k in T.grid(8, 64):
        with T.sblock("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            out[vi, vk] = T.Cast("float32", x[vi, vk]) - sums[vi]


@pytest.mark.parametrize(("func", "reason"), [(sums_of_more, "more than the row"), (rows_of_16_bits, "not of fp32")])
def test_what_no_gpu_has_run_is_declined(func, reason):
    result = RULE.apply(func, TARGET)
    assert isinstance(result, Declined) and reason in result.reason


def test_transposed_sums_are_declined():
    result = RULE.apply(sums_of_columns, TARGET)
    assert isinstance(result, Declined) and "stored elsewhere" in result.reason


def test_other_devices_are_declined():
    assert isinstance(RULE.apply(prim_func("softmax", (4, 64)), to_tvm(resolve("cuda-sm80"))), Declined)


def test_every_choice_holds_a_row():
    for shape in ((1, 8), (4096, 768), (128, 768), (9, 65536)):
        func = prim_func("softmax", shape)
        space = RULE.choices(func, TARGET)["threads"]
        assert RULE.apply(func, TARGET).parameters["threads"] in space
        assert all(threads % 32 == 0 and threads * 64 >= shape[-1] for threads in space)

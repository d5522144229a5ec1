"""NaN and integers that overflow, in the texts of templates on simulated threads: as numpy and torch have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm import relax
from tvm.relax import op

from benchmarks.gpu import conv_cases, gemm_cases
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.fused import one_prim_func, prim_func_of
from benchmarks.gpu.gemm_cases import Case
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.elementwise.elementwise import Elementwise
from relaxc.schedules.cuda.rows.rows import RowReductions
from relaxc.schedules.cuda.windows.windows import OverWindows
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.legalize.legalize_comparisons import COMPARISONS
from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED
from tests.schedules.cuda.simulated import run

TARGET = to_tvm(resolve("cuda-sm90"))
NAN, MOST = float("nan"), np.iinfo("int32").max
X = np.resize(np.array([NAN, 0.0, -0.0, 1.0, np.inf, -np.inf, -1.0, NAN], "float32"), 64)
Y = np.resize(np.array([0.0, NAN, 1.0, NAN, np.inf, -np.inf, NAN], "float32"), 64)


_QUANTIZED = (("x", (64,), "float32"), ("s", (), "float32"), ("z", (), "int8"))


def _module(parameters, value):
    block = relax.BlockBuilder()
    with block.function("main", parameters):
        with block.dataflow():
            result = block.emit_output(block.normalize(value))
        block.emit_func_output(result)
    return block.get()


def simulated(rule, func, given, folder):
    """What the kernel of `rule` writes for the arrays, in the order of the parameters: of those that are read."""
    form, gpu = rule.match(func), gpu_of(TARGET)
    assert not isinstance(form, Declined), form.reason
    kernel = rule.kernel_of(form, rule.default(form, gpu), gpu)
    made = np.zeros([int(size) for size in func.params[-1].shape], str(func.params[-1].dtype))
    arrays = dict(zip(func.params, [*given[: len(func.params) - 1], made], strict=True))
    run(kernel, [arrays[buffer] for buffer in kernel.pointers], folder)
    return made


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(
    ("graph", "numpys"),
    [
        (lambda x, y: op.nn.relu(x), lambda x, y: np.maximum(x, 0)),
        (lambda x, y: op.clip(x, -0.5, 0.5), lambda x, y: np.clip(x, -0.5, 0.5)),
        (op.maximum, np.maximum),
        (op.minimum, np.minimum),
    ],
    ids=["relu", "clip", "max", "min"],
)
def test_elements(graph, numpys, tmp_path):
    func = one_prim_func([(64,), (64,)], "float32", lambda xs: graph(*xs))
    np.testing.assert_array_equal(simulated(Elementwise(), func, [X, Y], tmp_path), numpys(X, Y))


def test_bytes_of_nan_are_the_lowest(tmp_path):
    x, scale, zero = (relax.Var(n, relax.TensorType(s, d)) for n, s, d in _QUANTIZED)
    func = prim_func_of(_module([x, scale, zero], op.quantize(x, scale, zero, axis=0, out_dtype="int8")), QUANTIZED)
    made = simulated(Elementwise(), func, [X, np.ones((), "float32"), np.zeros((), "int8")], tmp_path)
    np.testing.assert_array_equal(made, np.clip(np.nan_to_num(X, nan=-128.0), -128, 127).astype("int8"))


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize("at", [0, 3, 39])
def test_a_row(at, tmp_path):
    given = np.random.default_rng(0).standard_normal((5, 40)).astype("float32")
    given[2, at] = NAN
    largest = one_prim_func([(5, 40)], "float32", lambda xs: op.max(xs[0], -1))
    np.testing.assert_array_equal(simulated(RowReductions(), largest, [given], tmp_path), given.max(-1))
    softmax = one_prim_func([(5, 40)], "float32", lambda xs: op.nn.softmax(xs[0], -1))
    wanted = torch.from_numpy(given).softmax(-1).numpy()
    np.testing.assert_allclose(simulated(RowReductions(), softmax, [given], tmp_path), wanted, rtol=1e-5)


def test_a_window(tmp_path):
    case = ConvCase("max", (1, 6, 7, 8), 8, (3, 2), epilogue="none", out="float32")
    given = np.random.default_rng(0).standard_normal((1, 6, 7, 8)).astype("float16")
    given[0, 2, 3, 1] = NAN
    images = torch.from_numpy(given).float().permute(0, 3, 1, 2)
    wanted = torch.nn.functional.max_pool2d(images, (3, 2), 1).permute(0, 2, 3, 1).numpy()
    assert np.isnan(wanted).sum() == 6
    made = simulated(OverWindows(), conv_cases.prim_func(case), [given], tmp_path)
    np.testing.assert_array_equal(made.reshape(wanted.shape), wanted)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(
    ("graph", "wanted"),
    [
        (lambda x, y: op.greater(op.add(x, y), x), lambda x, y: x + y > x),
        (lambda x, y: op.maximum(op.multiply(x, y), x), lambda x, y: np.maximum(x * y, x)),
        (lambda x, y: op.less(op.abs(op.subtract(x, y)), y), lambda x, y: np.abs(x - y) < y),
    ],
    ids=["sum", "product", "difference"],
)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_wrap(graph, wanted, dtype, tmp_path):
    x, y = (relax.Var(name, relax.TensorType((8,), dtype)) for name in "xy")
    func = prim_func_of(_module([x, y], graph(x, y)), COMPARISONS)
    limits = np.iinfo(dtype)
    given = [np.resize(np.array(values, dtype), 8) for values in ([limits.max, limits.min, 5], [1, 3, 1, limits.max])]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(simulated(Elementwise(), func, given, tmp_path), wanted(*given))


_KERNELS = {
    "elementwise": lambda: one_prim_func([(1024,)] * 2, "float32", lambda xs: op.maximum(*xs)),
    "product": lambda: gemm_cases.prim_func(Case(1, 256, 256, 64, "float16", "float16", "relu")),
    "dlight": lambda: one_prim_func([(1024, 67)], "float32", lambda xs: op.max(xs[0], 0)),
    "all": lambda: one_prim_func([(1024, 67)], "float32", lambda xs: op.min(xs[0])),
    "dlight's halves": lambda: one_prim_func([(1, 3, 9, 9)], "float16", lambda xs: op.nn.max_pool2d(xs[0], (2, 2))),
}


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("name", _KERNELS)
def test_the_machine_code_keeps_nan(name, disassembled):
    """`FMNMX.NAN`, and `F2FP.RELU`, which keeps it too, are one instruction as `FMNMX` is."""
    func = _KERNELS[name]()
    made = next(made for rule in RULES if isinstance(made := rule.apply(func, TARGET), Schedule))
    code = disassembled(made.func).replace("VIMNMX", "")
    assert "FMNMX " not in code and "HMNMX2 " not in code
    assert "FMNMX.NAN" in code or "F2FP.RELU" in code or name == "dlight's halves"

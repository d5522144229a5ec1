"""`cuda.windows`: what it takes and declines, and how many threads it gets, its numbers on simulated ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import tvm_ffi
from tvm import relax

from benchmarks.gpu import conv_cases, conv_device
from benchmarks.gpu.build import described
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.fused import prim_func_of
from benchmarks.gpu.manifest import Entry
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.cuda.conv import compute
from relaxc.schedules.cuda.conv.compute import Windows
from relaxc.schedules.cuda.windows.windows import OverWindows
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes.legalize.legalize_quantized import QUANTIZED
from tests.schedules.cuda.images import prim_func, result_of
from tests.schedules.cuda.simulated import run

TARGET = to_tvm(resolve("cuda-sm90"))
RULE = OverWindows()
IMAGE = (2, 9, 11, 24)


@pytest.mark.parametrize(
    "windows",
    [
        Windows("depthwise", (3, 3), (2, 1), (1, 1), (2, 2)),
        Windows("max", (3, 2), (2, 2), (1, 0)),
        Windows("sum", (3, 3), padding=(1, 1)),
        Windows("pixels", IMAGE[1:3]),
    ],
)
@pytest.mark.parametrize("residual", [False, True])
def test_it_takes_windows_with_what_is_fused(windows, residual):
    func = prim_func(windows, IMAGE, 24, residual=residual)
    made = RULE.apply(func, TARGET)
    assert isinstance(made, Schedule) and TEXT_KERNEL in made.func.attrs
    space = RULE.points(func, TARGET).values
    assert all(value in space[name] for name, value in made.parameters.items())
    assert tvm_ffi.structural_equal(made.func, RULE.apply(func, TARGET, made.parameters).func)


@pytest.mark.parametrize(
    ("windows", "image", "filters", "dtype", "reason"),
    [
        (Windows("max", (2, 2)), (1, 4, 4, 12), 0, "float16", "multiples of 8"),
        (Windows("sum", (9, 9)), (1, 16, 16, 8), 0, "float16", "64 taps"),
        (Windows("max", (2, 2)), (1, 4, 4, 8), 0, "float64", "floats of one dtype"),
        (Windows("taps", (3, 3)), (1, 4, 4, 8), 8, "float16", "kind taps"),
    ],
)
def test_it_declines(windows, image, filters, dtype, reason):
    result = RULE.apply(prim_func(windows, image, filters, dtype=dtype), TARGET)
    assert isinstance(result, Declined) and reason in result.reason


def test_few_threads_have_all_their_loads_in_flight():
    """Many threads have the registers that the compiler gives them: more of them are on an SM."""
    for batch, per_sm in ((1, 1), (32, 0)):
        made = RULE.apply(prim_func(Windows("depthwise", (3, 3), padding=(1, 1)), (batch, 56, 56, 144), 144), TARGET)
        assert made.parameters["per_sm"] == per_sm


_MAX = ConvCase("max", (1, 4, 9, 16), 16, (1, 3), (3, 2), (1, 0, 1, 0), epilogue="none", out="float32")
_WIDE = ConvCase("max", (1, 5, 7, 8), 8, (3, 3), (2, 2), (1, 1, 1, 1), dtype="float32", epilogue="none", out="float32")
_DEPTHWISE = ConvCase(
    "depthwise", (1, 5, 7, 8), 8, (3, 3), (2, 1), (1, 1, 0, 1), (1, 2), epilogue="bias_residual_relu"
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "strip"),
    [
        (_MAX, 4),  # its first line is of windows that lie wholly outside
        (_WIDE, 2),
        pytest.param(_MAX, 1, marks=pytest.mark.slow),
        *(pytest.param(_DEPTHWISE, strip, marks=pytest.mark.slow) for strip in (1, 2, 4)),
    ],
    ids=lambda value: value.kind if isinstance(value, ConvCase) else str(value),
)
def test_the_text_gives_the_numbers_on_the_cpu(case, strip, tmp_path):
    func, draw = conv_cases.prim_func(case), torch.Generator().manual_seed(0)
    form = RULE.match(func)
    kernel = RULE.kernel_of(form, {"strip": strip, "per_sm": 0}, gpu_of(TARGET))
    dtypes = [getattr(torch, str(buffer.dtype)) for buffer in func.params]
    shapes = [[int(dim) for dim in buffer.shape] for buffer in func.params]
    given = [torch.randn(s, generator=draw).to(d) for s, d in zip(shapes, dtypes, strict=True)]
    arrays = [each.numpy() for each in given]
    run(kernel, [arrays[[b.same_as(p) for p in func.params].index(True)] for b in kernel.pointers], tmp_path)
    said = described(Entry("one", "conv", {"kind_of_case": "odd"}, []), case)
    wanted = conv_device.reference(said, given[:-1]).numpy()
    np.testing.assert_allclose(arrays[-1], wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.sampled(most=1)
@pytest.mark.parametrize(("kind", "dtype"), [("max", "uint8"), ("pixels", "int8")])
def test_a_quantized_result_is_bytes(kind, dtype, tmp_path):
    """As in a quantized network: what is pooled is quantized in the same kernel, as the reference does it."""
    image = (2, 5, 7, 16)
    windows = Windows("max", (3, 2), (2, 1), (1, 0)) if kind == "max" else Windows("pixels", image[1:3])
    out = result_of(windows, image, 1)
    compute_it = compute.pixels if kind == "pixels" else partial(compute.pool, windows=windows, out=out)
    block, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(image, "float16"))
    scale, zero = (relax.Var(n, relax.TensorType((), d)) for n, d in (("s", "float32"), ("z", dtype)))
    with block.function("main", [x, scale, zero]):
        with block.dataflow():
            value = block.emit_te(compute_it, x, primfunc_name_hint="sums", primfunc_attrs={"op_pattern": 4})
            result = block.emit_output(relax.op.quantize(value, scale, zero, axis=-1, out_dtype=dtype))
        block.emit_func_output(result)
    func = prim_func_of(block.get(), QUANTIZED)
    form = RULE.match(func)
    assert not isinstance(form, Declined)
    kernel = RULE.kernel_of(form, RULE.default(form, gpu_of(TARGET)), gpu_of(TARGET))
    given = np.random.default_rng(0).standard_normal(image).astype("float16") * 3
    arrays = [given, np.float32(0.04).reshape(()), np.array(5, dtype), np.zeros((2, *out, 16), dtype)]
    run(kernel, [arrays[[b.same_as(p) for p in func.params].index(True)] for b in kernel.pointers], tmp_path)
    wide = torch.from_numpy(given).float().permute(0, 3, 1, 2)
    sums = wide.sum((2, 3), keepdim=True)
    if kind == "max":
        sums = torch.nn.functional.max_pool2d(torch.nn.functional.pad(wide, (0, 0, 1, 1), value=-1e9), (3, 2), (2, 1))
    limits = np.iinfo(dtype)
    steps = np.rint((sums / np.float32(0.04)).numpy()) + 5
    wanted = np.clip(steps, limits.min, limits.max).transpose(0, 2, 3, 1)
    off = np.abs(arrays[-1].astype(int) - wanted)
    assert off.max() <= (0 if kind == "max" else 1) and (off > 0).mean() < 0.02
    assert arrays[-1].min() == limits.min and len(np.unique(arrays[-1])) > 5

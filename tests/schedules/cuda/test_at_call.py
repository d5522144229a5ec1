"""Sizes that are known at the call alone: which template takes what, and its text's numbers on simulated threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tvm.script import tirx as T

from benchmarks.gpu import attention_device, conv_device, moves_device, plain_device, rows_device
from benchmarks.gpu.attention_cases import AttentionCase
from benchmarks.gpu.build import described
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.fuzz.draw import SUITES
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.moves_cases import MovesCase
from benchmarks.gpu.plain_cases import PlainCase
from benchmarks.gpu.rows_cases import RowsCase
from relaxc.schedules.cuda import RULES
from relaxc.schedules.hardware import gpu_of
from relaxc.schedules.template import Declined
from relaxc.service.lowering.target import resolve, to_tvm
from tests.schedules.cuda.simulated import at_sizes, run

TARGET = to_tvm(resolve("cuda-sm90"))
GPU = gpu_of(TARGET)
DEVICES = {
    "attention": attention_device,
    "conv": conv_device,
    "plain": plain_device,
    "moves": moves_device,
    "rows": rows_device,
}


def values_of(case):
    """What the variables are that stand for sizes of the case."""
    if isinstance(case, AttentionCase):
        return {name: getattr(case, name) for name in case.open}
    if isinstance(case, ConvCase):
        return {f"n{axis}": case.image[axis] for axis in case.open}
    return {f"n{size}": size for size in case.open}


def computed(suite, case, rule, folder):
    """The result of a case by the template `rule` at its default, with guards around it, and the reference."""
    said = described(Entry("a", suite, {"kind_of_case": "random"}), case)
    given = DEVICES[suite].inputs(said, 1, "cpu")
    func = SUITES[suite].prim_func(case)
    template = next(each for each in RULES if each.name == rule)
    form = template.match(func)
    assert not isinstance(form, Declined), form.reason
    made = template.kernel_of(form, template.default(form, GPU), GPU)
    assert made.sizes
    kernel, sizes = at_sizes(made, values_of(case))
    shape, dtype = DEVICES[suite].result(said)
    out = torch.full(tuple(shape), 77, dtype=getattr(torch, dtype))
    tensors = dict(zip(func.params, (*given, out), strict=True))
    run(kernel, [tensors[buffer].view(-1).view(torch.uint8).numpy() for buffer in kernel.pointers], folder, sizes=sizes)
    want = DEVICES[suite].reference(said, given).double().numpy()
    return out.double().numpy().reshape(want.shape), want


CASES = (
    ("plain", PlainCase("chain", (3, 5, 24), steps=("add", "tanh"), others=((1, 5, 1),), open=(3, 5)),
     "cuda.elementwise"),
    ("plain", PlainCase("chain", (2, 3, 7), "float32", "float32", ("multiply",), ((2, 1, 7),), open=(7,)),
     "cuda.elementwise"),
    ("moves", MovesCase("transpose", (3, 13, 24), axes=(0, 2, 1), rule="cuda.transposed", open=(3, 13)),
     "cuda.transposed"),
    ("moves", MovesCase("transpose", (3, 5, 4, 8), axes=(0, 2, 1, 3), open=(3, 5)), "cuda.elementwise"),
    ("moves", MovesCase("concat", (3, 5, 24), axes=(1, 2), open=(3, 5)), "cuda.elementwise"),
    ("moves", MovesCase("take", (50, 24), axes=(3, 7), open=(3, 7)), "cuda.elementwise"),
    ("rows", RowsCase("layer_norm", (3, 5, 40), open=(3, 5)), "cuda.rows"),
    ("rows", RowsCase("softmax", (3, 7, 24), "float16", before="residual", open=(7,)), "cuda.rows"),
    ("rows", RowsCase("amax", (3, 7, 24), open=(3, 7)), "cuda.rows"),
    ("attention", AttentionCase(2, 2, 20, 37, 24, mask="keys", open=("batch", "queries", "keys")),
     "cuda.attention_sm80"),
    ("attention", AttentionCase(2, 4, 19, 40, 32, shared=2, layout="bhsd", mask="where", causal=3,
              open=("batch", "keys")),
     "cuda.attention_sm80"),
    ("attention", AttentionCase(2, 2, 5, 38, 24, mask="full", open=("batch",)), "cuda.attention_sm80"),
    ("attention", AttentionCase(2, 2, 33, 33, 32, layout="merged", causal=0, open=("queries",)), "cuda.attention_sm80"),
    ("attention", AttentionCase(2, 4, 1, 70, 32, shared=2, layout="bhsd", mask="low", open=("batch", "keys")),
     "cuda.attention_sm80"),
    ("conv", ConvCase("taps", (3, 7, 9, 16), 24, (3, 3), (2, 1), (1, 1, 1, 1),
              epilogue="bias_residual_relu", open=(0,)),
     "cuda.conv2d_sm80"),
    ("conv", ConvCase("taps", (2, 7, 9, 8), 16, (3, 3), (2, 2), (1, 0, 1, 2),
              epilogue="bias_residual_relu", open=(0, 1, 2)),
     "cuda.conv2d_sm80"),
    ("conv", ConvCase("depthwise", (2, 7, 9, 16), 16, (3, 3), (1, 1), (1, 1, 1, 1), open=(0, 1, 2)), "cuda.windows"),
    ("conv", ConvCase("max", (2, 7, 9, 16), 16, (3, 3), (2, 2), (1, 1, 1, 1), epilogue="none", open=(0,)),
     "cuda.windows"),
    ("conv", ConvCase("pointwise", (2, 5, 7, 16), 24, epilogue="bias_residual_relu", open=(0, 1)), "cuda.gemm_sm80"),
    ("plain", PlainCase("softmax", (3, 5, 24), axes=(2,), open=(5, 24)), "cuda.reductions"),
    ("plain", PlainCase("norm", (3, 7, 24), "float32", "float32", axes=(1, 2), open=(3, 7)), "cuda.reductions"),
    ("plain", PlainCase("mean", (3, 7, 16), axes=(1,), open=(7,)), "cuda.reductions"),
    ("plain", PlainCase("shares", (2, 7, 5, 16), axes=(1, 2), open=(2, 5)), "cuda.reductions"),
)  # fmt: skip


@pytest.mark.sampled(most=7)
@pytest.mark.parametrize(("suite", "case", "rule"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_numbers_of_its_text(suite, case, rule, tmp_path):
    got, want = computed(suite, case, rule, tmp_path)
    np.testing.assert_allclose(got, want, rtol=4e-3, atol=4e-3 * max(1.0, np.nanmax(np.abs(want))))


@T.prim_func(private=True, s_tir=True)
def repeated(a: T.handle, often: T.int64, b: T.handle):
    """Each row `often` times: a number that is no dim of an operand."""
    n, m = T.int64(), T.int64()
    x, y = T.match_buffer(a, (n, T.int64(8)), "float32"), T.match_buffer(b, (m, T.int64(8)), "float32")
    for i, j in T.grid(m, T.int64(8)):
        with T.sblock("repeated"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = x[vi // often, vj]


def test_a_number_that_the_program_gives_and_no_operand_has(tmp_path):
    func, rule = repeated.with_attr("op_pattern", 2), next(rule for rule in RULES if rule.name == "cuda.elementwise")
    form = rule.match(func)
    assert not isinstance(form, Declined), form.reason
    made = rule.kernel_of(form, rule.default(form, GPU), GPU)
    kernel, sizes = at_sizes(made, {"n": 3, "m": 12, "often": 4})
    x, y = np.arange(24, dtype="float32").reshape(3, 8), np.full((12, 8), 77, "float32")
    arrays = {func.params[0]: x, func.params[2]: y}
    run(kernel, [arrays[buffer] for buffer in kernel.pointers], tmp_path, sizes=sizes)
    np.testing.assert_array_equal(y, np.repeat(x, 4, axis=0))

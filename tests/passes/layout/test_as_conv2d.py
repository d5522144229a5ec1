"""Convolutions of any rank, transposed and grouped, as dense ones of images: the same numbers, by one operator."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax
from tvm.relax import op

from relaxc.service.passes.common.rewrite import op_name
from relaxc.service.passes.layout.as_conv2d import AsConv2d

FORWARD = (op.nn.conv1d, op.nn.conv2d, op.nn.conv3d)
TRANSPOSED = (op.nn.conv1d_transpose, op.nn.conv2d_transpose, op.nn.conv3d_transpose)
TORCH = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def drawn(seed):
    """A convolution of torch, its input, and the same in Relax."""
    chance = random.Random(seed)
    rank, transposed = chance.choice((1, 2, 3)), chance.random() < 0.4
    groups = 1 if transposed else chance.choice((1, 1, 2, 3))
    given, made = (groups * chance.choice((3, 4, 8, 9)) for _ in range(2))
    kernel, stride = ([chance.choice((1, 2, 3, 4)) for _ in range(rank)] for _ in range(2))
    stride = [min(2, each) for each in stride]
    padding = [chance.randrange(0, size // 2 + 1) for size in kernel]
    more = {} if transposed else {"dilation": [chance.choice((1, 2)) for _ in range(rank)]}
    extra = {"output_padding": [min(p, s - 1) for p, s in zip(padding, stride, strict=True)]} if transposed else {}
    torch.manual_seed(seed)
    module = TORCH[rank - 1 + 3 * transposed](
        given, made, kernel, stride, padding, groups=groups, bias=False, **more, **extra
    ).half()
    x = torch.randn(2, given, *(chance.choice((7, 8, 9)) for _ in range(rank))).half()
    var = relax.Var("x", relax.TensorType(x.shape, "float16"))
    build = (TRANSPOSED if transposed else FORWARD)[rank - 1]
    block = relax.BlockBuilder()
    with block.function("main", [var]):
        with block.dataflow():
            weight = relax.const(module.weight.detach().numpy())
            attributes = {"strides": stride, "padding": padding * 2, "groups": groups, **more, **extra}
            result = block.emit_output(build(var, weight, **attributes, out_dtype="float32"))
        block.emit_func_output(result)
    return module, x, block.get()


@pytest.mark.parametrize("seed", range(12))
def test_the_numbers_are_the_same(seed):
    module, x, given = drawn(seed)
    made = AsConv2d()(given)
    calls = [b.value for block in made["main"].body.blocks for b in block.bindings]
    names = {op_name(call) for call in calls if "conv" in op_name(call)}
    assert names == {"relax.nn.conv2d"}
    assert all(int(c.attrs.groups) == 1 for c in calls if op_name(c) == "relax.nn.conv2d")
    machine = relax.VirtualMachine(tvm.compile(made, target="llvm"), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x.numpy())).numpy()
    want = module.float()(x.float()).detach().numpy()
    assert got.shape == want.shape and np.abs(got - want).max() <= 4e-3 * max(1.0, np.abs(want).max())


def test_what_is_dense_and_whole_is_left():
    x = relax.Var("x", relax.TensorType((1, 8, 9, 9), "float16"))
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            weight = relax.const(np.zeros((16, 8, 3, 3), "float16"))
            result = block.emit_output(op.nn.conv2d(x, weight, out_dtype="float32"))
        block.emit_func_output(result)
    given = block.get()
    assert AsConv2d()(given).same_as(given)

"""Convolutions by tile registers (AMX): which are made of them, of what code, and that they compute what numpy does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te

from relaxc.schedules.cpu import planning
from relaxc.schedules.cpu.common.tile_registers import MATRIX
from relaxc.schedules.cpu.conv import blocked_plan, tiles_nest, tiles_plan
from relaxc.schedules.cpu.conv.blocked_compute import fill
from relaxc.schedules.cpu.conv.conv2d_tiles import Conv2dTiles
from relaxc.schedules.dots import accumulator_of
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.operators import Conv2d
from relaxc.schedules.template import Declined, Schedule
from relaxc.service import machine
from relaxc.service.lowering import pipeline
from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.lowering.target import resolve, to_tvm
from tests.guarded import guarded_tensor
from tests.schedules.cpu.tiles import BRAIN, HERE, INSTRUCTIONS, compiled, emulated, loaded, random, row

pipeline.register()
RULE = Conv2dTiles()
Array = np.ndarray[Any, Any]

CASES: dict[str, dict[str, Any]] = {
    "1x1": {"channels": 64, "filters": 64, "height": 9, "width": 14},
    "1x1, odd blocks": {"channels": 48, "filters": 80, "height": 7, "width": 7},
    "1x1, strided": {"channels": 32, "filters": 33, "height": 9, "width": 13, "strides": (2, 2)},
    "1x1, padded": {"channels": 16, "filters": 32, "height": 5, "width": 6, "padding": (1, 0, 2, 1)},
    "3x3": {"channels": 40, "filters": 32, "height": 14, "width": 14, "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "3x3, small": {"channels": 64, "filters": 64, "height": 7, "width": 7, "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "3x3, wide": {"channels": 32, "filters": 16, "height": 3, "width": 65, "kernel": (3, 3), "padding": (1, 1, 1, 1)},
    "3x3, two images": {
        "batch": 2,
        "channels": 17,
        "filters": 48,
        "height": 11,
        "width": 9,
        "kernel": (3, 3),
        "padding": (0, 1, 2, 1),
    },
    "3x3, strided": {
        "channels": 64,
        "filters": 32,
        "height": 15,
        "width": 18,
        "kernel": (3, 3),
        "padding": (1, 1, 1, 1),
        "strides": (2, 2),
    },
    "3x3, strided one way": {
        "channels": 32,
        "filters": 32,
        "height": 12,
        "width": 10,
        "kernel": (3, 3),
        "padding": (0, 1, 0, 1),
        "strides": (1, 3),
    },
    "3x3, dilated": {
        "channels": 32,
        "filters": 32,
        "height": 13,
        "width": 12,
        "kernel": (3, 3),
        "padding": (2, 2, 2, 2),
        "dilation": (2, 2),
    },
    "3x3, dilated and strided": {
        "channels": 32,
        "filters": 32,
        "height": 17,
        "width": 16,
        "kernel": (3, 3),
        "padding": (3, 2, 3, 2),
        "dilation": (3, 2),
        "strides": (2, 4),
    },
    "5x5": {"channels": 32, "filters": 32, "height": 10, "width": 8, "kernel": (5, 5), "padding": (2, 2, 2, 2)},
    "7x7, strided": {
        "channels": 20,
        "filters": 32,
        "height": 21,
        "width": 23,
        "kernel": (7, 7),
        "padding": (3, 3, 3, 3),
        "strides": (2, 2),
    },
    "2x1": {"channels": 32, "filters": 16, "height": 8, "width": 5, "kernel": (2, 1), "strides": (3, 1)},
    "unknown batch": {"batch": 0, "channels": 32, "filters": 32, "height": 5, "width": 7},
    "gated": {"channels": 48, "filters": 32, "height": 7, "width": 9, "gated": True},
    "groups": {
        "channels": 96,
        "filters": 64,
        "height": 8,
        "width": 9,
        "groups": 2,
        "kernel": (3, 3),
        "padding": (1, 1, 1, 1),
    },
    "groups of a block": {"channels": 64, "filters": 128, "height": 6, "width": 7, "groups": 4},
}


def convolution_of(operands: tuple[str, str], **shape: Any) -> Conv2d:
    total = accumulator_of(operands[1])
    return Conv2d(**{"batch": 1, "kernel": (1, 1), **shape}, operands=operands, accumulate=total, out=total)


@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.parametrize("case", CASES)
def test_every_point_is_one(case: str, operands: tuple[str, str]) -> None:
    op, cpu = convolution_of(operands, **CASES[case]), row("sapphirerapids")
    points = list(tiles_plan.points(op, cpu))
    assert points and {tiles_plan.refusal(op, point, cpu) for point in points} == {""}


def test_others_are_refused() -> None:
    op, cpu = convolution_of(BRAIN, **CASES["3x3"]), row("sapphirerapids")
    point = tiles_plan.default(op, cpu)
    assert point is not None
    wrongs = {"dot": 4, "block": 8, "vectors": 3, "matrix": 5, "chunks": 3, "height": 15, "lines": 15}
    refused = [tiles_plan.refusal(op, {**point, name: value}, cpu) for name, value in wrongs.items()]
    assert all(refused) and len(set(refused)) == 5
    assert "less than 1" in tiles_plan.refusal(op, {**point, "lines": 0}, cpu)
    assert "parameters are" in tiles_plan.refusal(op, blocked_plan.default(op, cpu), cpu)
    four = convolution_of(BRAIN, channels=32, filters=16, height=1, width=4)
    few = {**point, MATRIX: 3, "vectors": 1, "lines": 1, "height": 1, "chunks": 1}  # 2, 2 and none of four pixels
    assert "have no rows" in tiles_plan.refusal(four, few, cpu)
    grouped, wide = convolution_of(BRAIN, **CASES["groups of a block"]), {**few, MATRIX: 1, "vectors": 3}
    assert "more than one group" in tiles_plan.refusal(grouped, wide, cpu)
    assert "no tile instruction" in tiles_plan.refusal(op, point, row("znver4"))


def test_which_are_made_of_tiles() -> None:
    """Those of few channels and of groups that fill no block are not, nor on CPUs without the instruction."""
    cpu = row("sapphirerapids")
    op = convolution_of(BRAIN, channels=64, filters=64, height=14, width=14)
    assert planning.default(op, cpu).template == RULE.name
    assert planning.default(op, row("znver4")).template == "cpu.conv2d_blocked"
    assert planning.space(op, cpu)[0].template == RULE.name
    floats = replace(op, operands=("float32", "float32"))
    for other in (replace(op, channels=3, plain=True), replace(op, groups=8), floats):
        assert list(RULE.space(other, cpu)) == []


def test_a_cpu_without_the_instruction_declines_the_plan() -> None:
    func = primfunc(convolution_of(BRAIN, **CASES["1x1"]), row("sapphirerapids"))
    found = RULE.apply(func, to_tvm(resolve("znver4")))
    assert isinstance(found, Declined) and "no instruction" in found.reason


@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.parametrize(
    "shape",
    [
        {"channels": 256, "filters": 80, "height": 28, "width": 28},
        {**dict.fromkeys(("channels", "filters", "height", "width"), 56), "kernel": (3, 3), "strides": (2, 2)},
    ],
    ids=["1x1", "3x3"],
)
@pytest.mark.usefixtures("code_to_be_read")
def test_the_code_is_made_of_tile_instructions(shape: dict[str, Any], operands: tuple[str, str]) -> None:
    """Registers are configured once for panels of a width, and neither tiles nor vectors go to the stack."""
    spec, op = resolve("sapphirerapids"), convolution_of(operands, **shape)
    made = RULE.apply(primfunc(op, row("sapphirerapids")), to_tvm(spec))
    assert isinstance(made, Schedule)
    code = tvm.compile(made.func, to_code_target(spec), tir_pipeline=pipeline.NAME).mod.inspect_source("asm")
    assert code.count(INSTRUCTIONS[operands]) >= 4 and "vdpbf16ps" not in code and "vpdpbusd" not in code
    blocks = -(-op.filters // 16) // made.parameters["chunks"]
    widths = {min(made.parameters["vectors"], blocks), blocks % made.parameters["vectors"]} - {0}
    assert (code.count("\tldtilecfg"), code.count("\ttilerelease")) == (len(widths), 1)
    assert code.count("\ttilestored") == code.count("\ttilezero")
    assert not [line for line in code.splitlines() if ("zmm" in line or "tmm" in line) and "(%rsp)" in line]


@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.parametrize("case", CASES)
def test_convolutions(case: str, operands: tuple[str, str]) -> None:
    """On the CPU itself; `test_emulated` asks the same of every other."""
    flag = "amx-bf16" if operands == BRAIN else "amx-int8"
    if flag not in machine.cpu().features:
        pytest.skip(f"this CPU has no {flag.replace('-', '_')}, or the kernel refuses it")
    op, cpu = convolution_of(operands, **CASES[case]), row(HERE)
    for parameters in some(op, cpu):
        agree(op, built(op, cpu, parameters), parameters)


@pytest.mark.sampled
@pytest.mark.parametrize("operands", INSTRUCTIONS, ids=INSTRUCTIONS.values())
@pytest.mark.parametrize("case", CASES)
def test_emulated(
    case: str, operands: tuple[str, str], emulator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles_nest, "with_code", emulated)
    op, cpu = convolution_of(operands, **CASES[case]), row(HERE)
    for i, parameters in enumerate(some(op, cpu)):
        agree(op, loaded(built(op, cpu, parameters), tmp_path / f"{i}.so", emulator), parameters)


def some(op: Conv2d, cpu: Cpu, most: int = 4) -> list[dict[str, int]]:
    """The default, and points that differ from it."""
    points = list(tiles_plan.points(op, cpu))
    rng = np.random.default_rng(len(points))
    chosen = [points[i] for i in rng.permutation(len(points))[: most - 1]]
    return [tiles_plan.default(op, cpu), *chosen]  # type: ignore[list-item]


def blocked(array: Array) -> Array:
    """NCHW in blocks of 16 channels."""
    n, _, h, w = array.shape
    return np.ascontiguousarray(fill(array, 1, 16).reshape(n, -1, 16, h, w).transpose(0, 1, 3, 4, 2))


def primfunc(op: Conv2d, cpu: Cpu, parameters: dict[str, int] | None = None) -> tvm.tirx.PrimFunc:
    """The convolution with a residual behind it, by these parameters, or by its default plan.

    The batch is symbolic where it is not known, and one that is gated reads a value a channel.
    """
    chosen = parameters or tiles_plan.default(op, cpu)
    plan = planning.planned(op, RULE.name, chosen, cpu)
    batch, blocks = op.batch or tvm.tirx.Var("n", "int64"), -(-op.channels // 16)
    a = te.placeholder((batch, blocks, op.height, op.width, 16), op.operands[0], "a")
    gates = [te.placeholder((batch, blocks, 1, 1, 16), op.operands[0], "gate")] if op.gated else []
    weight = (op.filters, op.channels // op.groups, *op.kernel)
    b = te.placeholder(planning.packed_shape(plan, weight), op.operands[1], "b")
    made = planning.computation(plan)(a, b, *gates)
    more = te.placeholder(made.shape, op.out, "more")
    result = te.compute(made.shape, lambda *i: made(*i) + more(*i), name="result")
    return te.create_prim_func([a, b, *gates, more, result], index_dtype_override="int64")


def built(op: Conv2d, cpu: Cpu, parameters: dict[str, int]) -> Any:
    return compiled(RULE, primfunc(op, cpu, parameters))


def agree(op: Conv2d, module: Any, parameters: dict[str, int]) -> None:
    rng, batch = np.random.default_rng(op.channels), op.batch or 3
    image = random(rng, op.operands[0], (batch, op.channels, op.height, op.width))
    weight = random(rng, op.operands[1], (op.filters, op.channels // op.groups, *op.kernel))
    plan = planning.planned(op, RULE.name, parameters, row(HERE))
    more = rng.integers(-9, 9, (batch, -(-op.filters // 16), *op.result, 16)).astype(op.out)
    out = tvm.runtime.tensor(np.full(more.shape, -1, op.out))
    packed = planning.pack(plan, weight)
    assert packed.shape == planning.packed_shape(plan, weight.shape)
    gates = [random(rng, op.operands[0], (batch, op.channels, 1, 1))] if op.gated else []
    operands = (guarded_tensor(blocked(image), "end"), *map(tvm.runtime.tensor, (packed, *map(blocked, gates), more)))
    module["main"](*operands, out)
    scaled = (image * gates[0]).astype(image.dtype) if op.gated else image
    want = blocked(convolved(op, scaled, weight)) + more
    scale = 0.0 if op.out == "int32" else 1e-6 * op.channels * op.kernel[0] * op.kernel[1]
    np.testing.assert_allclose(out.numpy(), want, rtol=0, atol=scale, err_msg=str(parameters))


def convolved(op: Conv2d, image: Array, weight: Array) -> Array:
    """The convolution in float64."""
    (stride_h, stride_w), (dilation_h, dilation_w) = op.strides, op.dilation
    top, left, bottom, right = op.padding
    padded = np.pad(image.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    h, w = op.result
    total = np.zeros((len(image), op.filters, h, w))
    depth, count = op.channels // op.groups, op.filters // op.groups
    for r in range(op.kernel[0]):
        for q in range(op.kernel[1]):
            part = padded[:, :, r * dilation_h :: stride_h, q * dilation_w :: stride_w][:, :, :h, :w]
            for g in range(op.groups):
                taps = weight[g * count : (g + 1) * count, :, r, q].astype("float64")
                total[:, g * count : (g + 1) * count] += np.einsum(
                    "oi,nihw->nohw", taps, part[:, g * depth : (g + 1) * depth]
                )
    return total

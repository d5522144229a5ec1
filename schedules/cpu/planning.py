"""Plans for CPUs: the default of each heavy operator, its space, and what a layout pass emits for a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from relaxc.schedules.cpu.attention import attention_plan, word_plan
from relaxc.schedules.cpu.attention.attention import TiledAttention
from relaxc.schedules.cpu.common.dot_product import instruction, steps_of
from relaxc.schedules.cpu.common.tile_registers import instructions
from relaxc.schedules.cpu.conv import (
    blocked_compute,
    blocked_plan,
    depthwise_blocked,
    depthwise_compute,
    tiles_compute,
    tiles_plan,
    winograd_compute,
    winograd_plan,
)
from relaxc.schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from relaxc.schedules.cpu.conv.conv2d_tiles import Conv2dTiles
from relaxc.schedules.cpu.conv.depthwise_blocked import DepthwiseBlocked
from relaxc.schedules.cpu.conv.tiles_layout import Layout
from relaxc.schedules.cpu.conv.winograd import Winograd
from relaxc.schedules.cpu.gemm import blocks_compute, matmul_blocks, matrix_plan, packed_compute, packed_plan
from relaxc.schedules.cpu.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.cpu.pooling import pool_compute, pooling, pooling_image
from relaxc.schedules.cpu.pooling.pooling import Pooling
from relaxc.schedules.cpu.pooling.pooling_image import PoolingImage
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.operators import Attention, BlockMatmul, Conv2d, Depthwise2d, Matmul, Operator, Pool2d
from relaxc.schedules.plan import DEFAULT, Plan
from relaxc.schedules.planned import Planned

__all__ = [
    "Defaults",
    "arranged",
    "computation",
    "conv2d_dtypes",
    "convolves_bytes",
    "default",
    "enlarges",
    "has_instruction",
    "has_layouts",
    "has_pairs",
    "has_tiles",
    "is_blockable",
    "kernel_name",
    "layout_of",
    "matmul_dtypes",
    "multiplies_faster",
    "pack",
    "pack_blocks",
    "packed_shape",
    "plan_attention",
    "plan_conv2d",
    "plan_matmul",
    "planned",
    "pool2d_dtypes",
    "refusal",
    "space",
    "taken_at_once",
    "takes_blocks",
    "template",
]

Array = np.ndarray[Any, Any]

MATMUL, BLOCKS, DIRECT, WINOGRAD, TILES = MatmulPacked(), MatmulBlocks(), Conv2dBlocked(), Winograd(), Conv2dTiles()
DEPTHWISE, WINDOWS, IMAGE, ATTENTION = DepthwiseBlocked(), Pooling(), PoolingImage(), TiledAttention()
_ALL: tuple[Planned[Any], ...] = (MATMUL, BLOCKS, DIRECT, TILES, WINOGRAD, DEPTHWISE, WINDOWS, IMAGE, ATTENTION)
TEMPLATES = {rule.name: rule for rule in _ALL}

MOST_POINTS, MOST_OF_LAYOUT = 128, 8
"""Points of one algorithm in a space, and of one layout in that: those of the least estimates."""


@dataclass(frozen=True)
class Defaults:
    """The planner that knows the hardware row alone."""

    cpu: Cpu

    def plan(self, operator: Operator) -> Plan:
        """See `relaxc.schedules.plan.Planner`."""
        return default(operator, self.cpu)


def plan_matmul(op: Matmul, cpu: Cpu) -> Plan:
    """Return the default plan of a product with constant weights."""
    plan = planned(op, MATMUL.name, packed_plan.default(op, cpu), cpu)
    by_tiles = None if MATMUL.wrong_dtypes(op) else matrix_plan.default(op, cpu)
    if by_tiles is None:
        return plan
    return min(plan, planned(op, MATMUL.name, by_tiles, cpu), key=lambda each: each.cycles)


def plan_conv2d(op: Conv2d, cpu: Cpu, *, small_weights: bool = False) -> Plan:
    """Return the default plan of a convolution: Winograd's where the estimates say that it is faster than direct.

    With `small_weights` it is never one that `enlarges` them.
    """
    is_winograd = not small_weights and winograd_plan.is_winograd(op, cpu) and not WINOGRAD.wrong_dtypes(op)
    faster = winograd_plan.default(op, cpu) if is_winograd else None
    if faster is not None:
        return planned(op, WINOGRAD.name, faster, cpu)
    plan = planned(op, DIRECT.name, blocked_plan.default(op, cpu), cpu)
    by_tiles = None if TILES.wrong_dtypes(op) else tiles_plan.default(op, cpu)
    if by_tiles is None:
        return plan
    return min(plan, planned(op, TILES.name, by_tiles, cpu), key=lambda each: each.cycles)


def plan_attention(op: Attention, cpu: Cpu) -> Plan:
    """Return the default plan of attention: on pairs of 16 bits where the estimates say that it is faster."""
    found = (attention_plan.default(op, cpu), word_plan.default(op, cpu))
    plans = [planned(op, ATTENTION.name, each, cpu) for each in found if each is not None]
    return min(plans, key=lambda plan: plan.cycles)


def default(op: Operator, cpu: Cpu, *, small_weights: bool = False) -> Plan:
    """Return the default plan of an operator; it does not depend on the epilogue, and does not name it."""
    bare = op.bare()
    if isinstance(bare, Matmul):
        return plan_matmul(bare, cpu)
    if isinstance(bare, BlockMatmul):
        return planned(bare, BLOCKS.name, matmul_blocks.default(bare, cpu), cpu)
    if isinstance(bare, Conv2d):
        return plan_conv2d(bare, cpu, small_weights=small_weights)
    if isinstance(bare, Depthwise2d):
        return planned(bare, DEPTHWISE.name, depthwise_blocked.default(bare, cpu), cpu)
    if isinstance(bare, Attention):
        return plan_attention(bare, cpu)
    if bare.whole:
        return planned(bare, IMAGE.name, pooling_image.default(bare, cpu), cpu)
    return planned(bare, WINDOWS.name, pooling.default(bare, cpu), cpu)


def planned(op: Operator, template_name: str, parameters: Mapping[str, int], cpu: Cpu, origin: str = DEFAULT) -> Plan:
    """Return the plan of these parameters, with its estimate."""
    return Plan(op, template_name, parameters, TEMPLATES[template_name].estimate(op, parameters, cpu), origin)


def template(name: str) -> Planned[Any] | None:
    """Return the template of this name that follows plans."""
    return TEMPLATES.get(name)


def refusal(op: Operator, template_name: str, parameters: Mapping[str, int], cpu: Cpu) -> str:
    """Return why a template does not compute an operator with these parameters; empty if it does."""
    rule = TEMPLATES.get(template_name)
    if rule is None or not isinstance(op, rule.computes):
        return f"{template_name} computes no {op.kind}"
    return rule.refusal(op, parameters, cpu)


def space(op: Operator, cpu: Cpu) -> list[Plan]:
    """Return the plans that a search may try, the default first: no two of them the same kernel, each right.

    They are of every algorithm, and of each those layouts and points that the estimates put first.
    """
    rules = [rule for rule in TEMPLATES.values() if isinstance(op, rule.computes)]
    found = [planned(op, rule.name, parameters, cpu) for rule in rules for parameters in rule.space(op, cpu)]
    first = planned(op, (plan := default(op, cpu)).template, plan.parameters, cpu)
    of_algorithm, of_layout = Counter([first.template]), Counter([layout_of(first)])
    chosen = [first]
    for plan in sorted(dict.fromkeys(found), key=lambda plan: (plan.cycles, plan.to_json())):
        layout = layout_of(plan)
        if plan != first and of_algorithm[plan.template] < MOST_POINTS and of_layout[layout] < MOST_OF_LAYOUT:
            chosen.append(plan)
            of_algorithm[plan.template] += 1
            of_layout[layout] += 1
    return chosen


def computation(plan: Plan) -> Callable[..., Any]:
    """Return the operator as a tensor expression of image or rows, packed weights, and a gate if there is one.

    Not of attention: where its operands are, the pass that finds it knows.
    """
    if plan.template == MATMUL.name:
        return packed_compute.computation(plan)
    if plan.template == BLOCKS.name:
        return blocks_compute.computation(plan)
    computations: dict[str, Callable[..., Any]] = {
        DIRECT.name: blocked_compute.conv2d,
        TILES.name: tiles_compute.conv2d,
        WINOGRAD.name: winograd_compute.conv2d,
        DEPTHWISE.name: depthwise_compute.depthwise_conv2d,
        WINDOWS.name: pool_compute.pool_windows,
        IMAGE.name: pool_compute.pool_image,
    }
    return partial(computations[plan.template], plan=plan)


def kernel_name(plan: Plan) -> str:
    """Return what the kernel of a plan is called."""
    op = plan.operator
    if isinstance(op, Pool2d):
        return f"{op.reduce}_image" if op.whole else f"{op.reduce}_pool2d"
    if isinstance(op, Depthwise2d):
        return "depthwise_conv2d_nhwc" if op.channels_last else "depthwise_conv2d"
    names = {
        MATMUL.name: "matmul",
        BLOCKS.name: "block_matmul",
        DIRECT.name: "conv2d",
        TILES.name: "conv2d",
        WINOGRAD.name: "winograd_conv2d",
        ATTENTION.name: "attention",
    }
    return names[plan.template]


def is_blockable(op: Conv2d, cpu: Cpu) -> bool:
    """Return whether a template computes it on blocks of channels."""
    return blocked_plan.is_blockable(op, cpu.lanes(op.sum_bits))


def enlarges(template_name: str) -> bool:
    """Return whether a template's weights take more room than the model's: Winograd's do, by 16 or 36 ninths."""
    return template_name == WINOGRAD.name


def has_layouts(plan: Plan) -> bool:
    """Return whether its operator has weights that other plans pack in other ways."""
    return isinstance(plan.operator, Matmul | Conv2d)


def layout_of(plan: Plan) -> Plan:
    """Return the plan with the parameters of its layout alone: equal for kernels that take the same operands."""
    rule = TEMPLATES[plan.template]
    kept = {name: plan.parameters[name] for name in rule.layout if name in plan.parameters}
    return Plan(plan.operator, plan.template, kept)


def taken_at_once(plan: Plan) -> int:
    """Return how many steps of the depth an instruction of its kernel takes; 1 where the operands are widened."""
    return steps_of(plan.parameters)


def packed_shape(plan: Plan, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of weights of `shape` that `pack` has packed, of an operator that `has_layouts`."""
    op, parameters = plan.operator, plan.parameters
    if isinstance(op, Matmul):
        width = parameters["vectors"] * parameters["block"]
        dot = steps_of(parameters)
        return -(-op.n // width), op.k // dot, width, *([dot] if dot > 1 else [])
    lanes = parameters["block"]
    blocks, depth = -(-shape[0] // lanes), -(-shape[1] // lanes)
    if plan.template == WINOGRAD.name:
        points, vectors = parameters["size"] + 2, parameters["vectors"]
        return blocks // vectors, points, points, depth * lanes, vectors * lanes
    in_lanes, dot = _in_lanes(plan), steps_of(parameters)
    return blocks, -(-shape[1] // in_lanes), *shape[2:], in_lanes // dot, lanes, *([dot] if dot > 1 else [])


def matmul_dtypes(left: str, right: str, out: str) -> dict[str, Any] | None:
    """Return the dtypes of a product as `Matmul` names them; None where no template on packed weights takes them.

    Its result may be what is summed, or floats of the operands' type; bytes of a sum of bytes would have wrapped.
    """
    return _dtypes(MATMUL, left, right, out)


def conv2d_dtypes(left: str, right: str, out: str) -> dict[str, Any] | None:
    """Return the dtypes of a convolution as `matmul_dtypes` does those of a product."""
    return _dtypes(DIRECT, left, right, out)


def pool2d_dtypes(dtype: str, reduce: str) -> dict[str, Any] | None:
    """Return the dtypes of a pool as `Pool2d` names them: float32, and narrow ones of which the maximum is taken."""
    accumulate = next((each[1] for each in WINDOWS.dtypes if each[0] == dtype), None)
    if accumulate is None or not (accumulate == dtype or reduce == "max"):
        return None
    return {"operands": (dtype,), "accumulate": accumulate, "out": dtype}


def _dtypes(rule: Planned[Any], left: str, right: str, out: str) -> dict[str, Any] | None:
    accumulate = next((each[2] for each in rule.dtypes if each[:2] == (left, right)), None)
    if accumulate is None or (out != accumulate and not (is_float(out) and out == left)):
        return None
    return {"operands": (left, right), "accumulate": accumulate, "out": out}


def has_instruction(cpu: Cpu, operands: tuple[str, ...], depth: int) -> bool:
    """Return whether an instruction adds several products of these operands to a sum of `depth`."""
    return instruction(operands, cpu.reference((operands[0], operands[1])).accumulate, depth, cpu) is not None


def has_pairs(cpu: Cpu, operands: tuple[str, str]) -> bool:
    """Return whether an instruction adds products of pairs of these floats, and so takes no odd depth."""
    return is_float(operands[0]) and has_instruction(cpu, operands, 2)


def has_tiles(cpu: Cpu, operands: tuple[str, ...]) -> bool:
    """Return whether convolutions of these operands may be by tile registers."""
    return next(instructions(operands, cpu.reference((operands[0], operands[1])).accumulate, cpu), None) is not None


def multiplies_faster(cpu: Cpu, operands: tuple[str, str], depth: int, than: str) -> bool:
    """Return whether products of these operands with sums of `depth` take fewer cycles than those of the dtype `than`.

    The templates have instructions for several steps of the depth at once; otherwise they widen and multiply.
    """
    plain = cpu.reference(operands)
    dot = instruction(operands, plain.accumulate, depth, cpu) or plain
    return dot.rate > cpu.dot(than).rate


def _in_lanes(plan: Plan) -> int:
    """Channels of the image in the innermost axis of the weights: those that an instruction takes where it has few."""
    if plan.template == TILES.name:
        return Layout.of(plan.operator, plan.parameters).depth  # type: ignore[arg-type]  # it is of a Conv2d
    is_plain = isinstance(plan.operator, Conv2d) and plan.operator.plain
    return steps_of(plan.parameters) if is_plain else plan.parameters["block"]


def convolves_bytes(cpu: Cpu) -> bool:
    """Return whether convolutions of bytes take fewer cycles than those of floats."""
    (floats, *_), *others = DIRECT.dtypes
    of_bytes = [each for each in others if not is_float(each[2])]
    return any(multiplies_faster(cpu, (left, right), cpu.lanes(total), floats) for left, right, total in of_bytes)


def takes_blocks(op: BlockMatmul, cpu: Cpu) -> bool:
    """Return whether there is a template for a product with weights in blocks: one of few rows and whole words."""
    return not BLOCKS.refusal(op, matmul_blocks.default(op, cpu), cpu)


def pack_blocks(plan: Plan, codes: Array, scales: Array, zeros: Array | None) -> tuple[Array, ...]:
    """Return the codes `NK`, scales and zero points of a `BlockMatmul` as the plan has them laid out."""
    return blocks_compute.pack(plan, codes, scales, zeros)


def pack(plan: Plan, weight: Array) -> Array:
    """Return the weights, `KN` or `OIHW`, as the plan has them laid out."""
    return np.ascontiguousarray(arranged(plan, weight))


def arranged(plan: Plan, weight: Array) -> Array:
    """Return what `pack` does, of any strides: a view of `weight` where it can be, which who copies it packs."""
    op, parameters, lanes = plan.operator, plan.parameters, plan.parameters["block"]
    if isinstance(op, Matmul):
        return packed_compute.pack(weight, parameters["vectors"] * lanes, steps_of(parameters))
    if isinstance(op, Depthwise2d):
        return depthwise_compute.pack_weight(weight, lanes)
    if plan.template == WINOGRAD.name:
        return winograd_compute.transform_weight(weight, parameters["size"], lanes, parameters["vectors"])
    return blocked_compute.pack_weight(weight, _in_lanes(plan), lanes, steps_of(parameters))

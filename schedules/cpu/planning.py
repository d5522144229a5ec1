"""Plans for CPUs: the default of each heavy operator, its space, and what a layout pass emits for a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxc.schedules.cpu import RULES
from relaxc.schedules.cpu.common.dot_product import instruction, steps_of
from relaxc.schedules.cpu.common.tile_registers import instructions
from relaxc.schedules.cpu.conv import blocked_plan
from relaxc.schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from relaxc.schedules.cpu.gemm import blocks_compute
from relaxc.schedules.cpu.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.cpu.pooling.pooling import Pooling
from relaxc.schedules.hardware import Cpu
from relaxc.schedules.ir.dtypes import is_float
from relaxc.schedules.operators import BlockMatmul, Conv2d, Operator
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
    "planned",
    "pool2d_dtypes",
    "refusal",
    "space",
    "taken_at_once",
    "takes_blocks",
    "template",
]

Array = np.ndarray[Any, Any]

TEMPLATES: dict[str, Planned[Any]] = {rule.name: rule for rule in RULES if isinstance(rule, Planned)}
"""The registered templates that follow plans, by name; of equal estimates the first is chosen."""

MOST_POINTS, MOST_OF_LAYOUT = 128, 8
"""Points of one algorithm in a space, and of one layout in that: those of the least estimates."""


@dataclass(frozen=True)
class Defaults:
    """The planner that knows the hardware row alone."""

    cpu: Cpu

    def plan(self, operator: Operator) -> Plan:
        """See `relaxc.schedules.plan.Planner`."""
        return default(operator, self.cpu)


def default(op: Operator, cpu: Cpu, *, small_weights: bool = False) -> Plan:
    """Return the default plan of an operator.

    It is that of the least estimate among the templates' defaults, but for a template that `decides` itself. With
    `small_weights` it is never one that `enlarges` them.
    """
    rules = [rule for rule in _computing(op) if not (small_weights and rule.enlarges)]
    found = [(rule, parameters) for rule in rules if (parameters := rule.default(op, cpu)) is not None]
    decided = [each for each in found if each[0].decides]
    plans = [planned(op, rule.name, parameters, cpu) for rule, parameters in decided or found]
    return min(plans, key=lambda plan: plan.cycles)


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
    found = [planned(op, rule.name, parameters, cpu) for rule in _computing(op) for parameters in rule.space(op, cpu)]
    first = default(op, cpu)
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
    """Return the operator as a tensor expression, as its template computes it by the plan; not of attention."""
    return TEMPLATES[plan.template].compute(plan)


def kernel_name(plan: Plan) -> str:
    """Return what the kernel of a plan is called."""
    return TEMPLATES[plan.template].kernel_name(plan.operator)


def is_blockable(op: Conv2d, cpu: Cpu) -> bool:
    """Return whether a template computes it on blocks of channels."""
    return blocked_plan.is_blockable(op, cpu.lanes(op.sum_bits))


def enlarges(template_name: str) -> bool:
    """Return whether a template's weights take more room than the model's: Winograd's do, by 16 or 36 ninths."""
    return TEMPLATES[template_name].enlarges


def has_layouts(plan: Plan) -> bool:
    """Return whether its operator has weights that other plans pack in other ways."""
    return TEMPLATES[plan.template].repacks


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
    return TEMPLATES[plan.template].packed_shape(plan, shape)


def matmul_dtypes(left: str, right: str, out: str) -> dict[str, Any] | None:
    """Return the dtypes of a product as `Matmul` names them; None where no template on packed weights takes them.

    Its result may be what is summed, or floats of the operands' type; bytes of a sum of bytes would have wrapped.
    """
    return _dtypes(MatmulPacked, left, right, out)


def conv2d_dtypes(left: str, right: str, out: str) -> dict[str, Any] | None:
    """Return the dtypes of a convolution as `matmul_dtypes` does those of a product."""
    return _dtypes(Conv2dBlocked, left, right, out)


def pool2d_dtypes(dtype: str, reduce: str) -> dict[str, Any] | None:
    """Return the dtypes of a pool as `Pool2d` names them: float32, and narrow ones of which the maximum is taken."""
    accumulate = next((each[1] for each in Pooling.dtypes if each[0] == dtype), None)
    if accumulate is None or not (accumulate == dtype or reduce == "max"):
        return None
    return {"operands": (dtype,), "accumulate": accumulate, "out": dtype}


def _dtypes(rule: type[Planned[Any]], left: str, right: str, out: str) -> dict[str, Any] | None:
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


def convolves_bytes(cpu: Cpu) -> bool:
    """Return whether convolutions of bytes take fewer cycles than those of floats."""
    (floats, *_), *others = Conv2dBlocked.dtypes
    of_bytes = [each for each in others if not is_float(each[2])]
    return any(multiplies_faster(cpu, (left, right), cpu.lanes(total), floats) for left, right, total in of_bytes)


def takes_blocks(op: BlockMatmul, cpu: Cpu) -> bool:
    """Return whether there is a template for a product with weights in blocks: one of few rows and whole words."""
    rule = MatmulBlocks()
    return not rule.refusal(op, rule.default(op, cpu), cpu)


def pack_blocks(plan: Plan, codes: Array, scales: Array, zeros: Array | None) -> tuple[Array, ...]:
    """Return the codes `NK`, scales and zero points of a `BlockMatmul` as the plan has them laid out."""
    return blocks_compute.pack(plan, codes, scales, zeros)


def pack(plan: Plan, weight: Array) -> Array:
    """Return the weights, `KN` or `OIHW`, as the plan has them laid out."""
    return np.ascontiguousarray(arranged(plan, weight))


def arranged(plan: Plan, weight: Array) -> Array:
    """Return what `pack` does, of any strides: a view of `weight` where it can be, which who copies it packs."""
    return TEMPLATES[plan.template].pack(plan, weight)


def _computing(op: Operator) -> Iterator[Planned[Any]]:
    """The templates for operators of this kind."""
    return (rule for rule in TEMPLATES.values() if isinstance(op, rule.computes))

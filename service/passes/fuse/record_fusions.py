"""The kernels that fusion makes, counted by what they compute."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import op_name, static_shape
from relaxc.service.passes.report import OptimizeReport

__all__ = ["RecordFusions"]

NUMBERED = re.compile(r"_?\d+$")
CONTRACTION = re.compile(r"(matmul|conv\dd)")


@tvm.transform.module_pass(opt_level=0, name="RecordFusions")
class RecordFusions:
    """Between FuseOps and FuseTIR, where each group is still a function of calls. Changes nothing.

    A chain is named by its operators in order: `conv2d + bias + residual + relu`. An addition to a
    contraction is `bias` where its other operand varies along one axis at most, else `residual`.
    """

    def __init__(self, report: OptimizeReport) -> None:
        self.report = report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module as it is."""
        counts: Counter[str] = Counter()
        computes: dict[str, str] = {}
        for call in _kernel_calls(module):
            group = module[call.op] if isinstance(call.op, relax.GlobalVar) else None
            chain = _chain(group) if group is not None else [_label(call)]
            counts[" + ".join(chain)] += 1
            if group is not None:
                computes[str(call.op.name_hint)] = " + ".join(chain)
        self.report.fusions = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
        self.report.computes = dict(sorted(computes.items()))
        return module


def _kernel_calls(module: IRModule) -> list[relax.Call]:
    calls: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and (isinstance(expr.op, relax.GlobalVar) or op_name(expr) == "relax.call_tir"):
            calls.append(expr)

    relax.analysis.post_order_visit(module["main"], visit)
    return calls


def _label(call: relax.Call) -> str:
    name = str(call.args[0].name_hint).removeprefix("tir_").removeprefix("te_")
    return NUMBERED.sub("", name)


def _chain(group: relax.Function) -> list[str]:
    calls = [
        (binding.var, binding.value)
        for block in group.body.blocks
        for binding in block.bindings
        if op_name(binding.value) == "relax.call_tir"
    ]
    labels = [_label(call) for _, call in calls]
    start = next((i for i, label in enumerate(labels) if CONTRACTION.match(label)), None)
    return _named(labels if start is None else _epilogue(calls, labels, start))


def _epilogue(calls: list[tuple[Any, relax.Call]], labels: list[str], start: int) -> list[str]:
    """The labels from the contraction on, of the calls that it leads to: what only prepares an addend is left out."""
    reached, chain = {calls[start][0]}, [labels[start]]
    for (var, call), label in list(zip(calls, labels, strict=True))[start + 1 :]:
        fields = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else []
        others = [field for field in fields if field not in reached]
        if len(others) == len(fields):
            continue
        reached.add(var)
        chain.append(_addend(others) if label == "add" else label)
    return chain


def _addend(others: list[relax.Expr]) -> str:
    if len(others) != 1:
        return "add"
    shape = static_shape(others[0])
    return "bias" if shape is not None and sum(size != 1 for size in shape) <= 1 else "residual"


IDIOMS = {
    ("add", "clip", "divide", "multiply"): "hardswish",
    ("add", "clip", "multiply", "multiply"): "hardswish",
    ("add", "clip", "divide"): "hardsigmoid",
}


def _named(labels: list[str]) -> list[str]:
    """The chain with the activations that have no operator of their own under their names."""
    for idiom, name in IDIOMS.items():
        for start in range(len(labels) - len(idiom) + 1):
            if tuple(labels[start : start + len(idiom)]) == idiom:
                return _named([*labels[:start], name, *labels[start + len(idiom) :]])
    return labels

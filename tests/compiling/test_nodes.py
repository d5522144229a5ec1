"""What the manifest says of almost all of the estimated time: the model's nodes, and the plan of each kernel."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from relaxc.schedules import cpu, cuda
from relaxc.schedules.ir.describe import bare
from relaxc.schedules.template import Schedule
from relaxc.service.compiler import load_and_schedule, prepare
from relaxc.service.compiling.stages import Front, Stages
from relaxc.service.dump import no_dump
from relaxc.service.lowering.apply import finish
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.records.coverage import estimated_cycles
from tests import zoo

CASES = (
    ("resnet18", "onnx", "x86-64-v3"),
    ("bert", "onnx", "x86-64-v3"),
    ("gpt2", "pt2", "x86-64-v4"),
    ("convnext", "pt2", "cuda-sm90"),
    ("efficientnet", "onnx", "aarch64"),
)


@cache
def compiled(model: str, form: Any, target: str) -> tuple[Front, Path]:
    path = zoo.export(model, form)
    return load_and_schedule(prepare(path, target=target), Stages(lambda event: None), no_dump), path


def timed(front: Front, target: str) -> list[tuple[float, dict[str, Any]]]:
    """The rows of the report, each with its estimated time."""
    kind = to_tvm(resolve(target))
    return [(estimated_cycles(row["flops"], row["bytes"], kind), row) for row in front.scheduled.report]


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("model", "form", "target"), CASES)
def test_the_nodes_of_almost_all_of_the_time_are_named(model: str, form: str, target: str) -> None:
    front, path = compiled(model, form, target)
    times = timed(front, target)
    named = sum(time for time, row in times if row["nodes"])
    assert named >= 0.95 * sum(time for time, _ in times)
    known = _names(model, path, form)
    assert known.issuperset(
        name.rpartition("/")[0] if form == "pt2" else name for _, row in times for name in row["nodes"]
    )


@pytest.mark.parametrize(("model", "form", "target"), CASES)
def test_each_kernel_that_takes_time_has_a_plan_that_makes_it_again(model: str, form: str, target: str) -> None:
    """By the template, version and parameters of the manifest's row, on CPUs and CUDA alike."""
    front, _ = compiled(model, form, target)
    spec, times = resolve(target), timed(front, target)
    rules = {rule.name: rule for rule in (cuda if spec.kind == "cuda" else cpu).RULES}
    heavy = [row for time, row in times if time > 0.01 * sum(time for time, _ in times)]
    assert len(heavy) > 5
    for row in heavy:
        assert rules[row["rule"]].version == row["version"]
        func = bare(front.optimized.module[row["function"]])
        made = rules[row["rule"]].apply(func, to_tvm(spec), row["parameters"])
        assert isinstance(made, Schedule), (row["function"], made)
        scheduled = finish(made.func, spec, 2)
        assert tvm_ffi.structural_equal(scheduled, front.scheduled.module[row["function"]]), row["function"]


def _names(model: str, path: Path, form: str) -> set[str]:
    """Those of the file's nodes; of a program the paths of its modules."""
    if form == "pt2":
        return {name for name, _ in zoo.build(model).module.named_modules()}
    import onnx

    return {node.name or node.output[0] for node in onnx.load(path).graph.node}


def test_a_convolution_is_named_with_what_is_behind_it_and_no_other() -> None:
    front, path = compiled("resnet18", "onnx", "x86-64-v3")
    rows = front.scheduled.report
    import onnx

    ops = {node.name: node.op_type for node in onnx.load(path).graph.node}
    chains = [tuple(ops[name] for name in row["nodes"]) for row in rows if "conv2d" in row["function"]]
    once = {tuple(sorted(set(chain))) for chain in chains}
    assert once == {("Conv", "Relu"), ("Conv",), ("Add", "Conv", "Relu")}
    assert sum(chain.count("Conv") for chain in chains) == list(ops.values()).count("Conv")

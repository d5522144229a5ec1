"""Kernels name the nodes of the model that they compute, through every pass, for almost all of the estimated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relaxc.service.compiler import load_and_schedule, prepare
from relaxc.service.compiling.stages import Stages
from relaxc.service.dump import no_dump
from relaxc.service.lowering.target import to_tvm
from relaxc.service.records.coverage import estimated_cycles
from tests import zoo

CASES = (
    ("resnet18", "onnx", "x86-64-v3"),
    ("bert", "onnx", "x86-64-v3"),
    ("gpt2", "pt2", "x86-64-v4"),
    ("convnext", "pt2", "cuda-sm90"),
    ("efficientnet", "onnx", "aarch64"),
)


def rows_of(model: str, form: Any, target: str) -> tuple[list[dict[str, Any]], Path, Any]:
    path = zoo.export(model, form)
    request = prepare(path, target=target)
    made = load_and_schedule(request, Stages(lambda event: None), no_dump)
    return made.scheduled.report, path, to_tvm(request.target)


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize(("model", "form", "target"), CASES)
def test_the_nodes_of_almost_all_of_the_time_are_named(model: str, form: str, target: str) -> None:
    rows, path, kind = rows_of(model, form, target)
    times = [(estimated_cycles(row["flops"], row["bytes"], kind), row) for row in rows]
    named = sum(time for time, row in times if row["nodes"])
    assert named >= 0.95 * sum(time for time, _ in times)
    known = _names(model, path, form)
    assert known.issuperset(name.rpartition("/")[0] if form == "pt2" else name for row in rows for name in row["nodes"])


def _names(model: str, path: Path, form: str) -> set[str]:
    """Those of the file's nodes; of a program the paths of its modules."""
    if form == "pt2":
        return {name for name, _ in zoo.build(model).module.named_modules()}
    import onnx

    return {node.name or node.output[0] for node in onnx.load(path).graph.node}


def test_a_convolution_is_named_with_what_is_behind_it_and_no_other() -> None:
    rows, path, _ = rows_of("resnet18", "onnx", "x86-64-v3")
    import onnx

    ops = {node.name: node.op_type for node in onnx.load(path).graph.node}
    chains = [tuple(ops[name] for name in row["nodes"]) for row in rows if "conv2d" in row["function"]]
    once = {tuple(sorted(set(chain))) for chain in chains}
    assert once == {("Conv", "Relu"), ("Conv",), ("Add", "Conv", "Relu")}
    assert sum(chain.count("Conv") for chain in chains) == list(ops.values()).count("Conv")

"""kernel_graph: calls in order and what each reads, through tuples and views, the weights left out."""

from __future__ import annotations

import json
from typing import Any

from tvm.relax import op

from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph, weights


def report_of(build: Any, opt_level: int = 2, **inputs: Any) -> Any:
    """The report of an optimized module, as JSON gives it back."""
    optimized = optimize(graph(build, **inputs), TARGET, CompileOptions(opt_level=opt_level))
    return json.loads(json.dumps(optimized.report.to_dict()))


def test_a_residual_is_an_edge_over_other_kernels() -> None:
    def net(x: Any, y: Any) -> Any:
        first = op.matmul(x, weights(8, 8))
        second = op.nn.softmax(op.matmul(first, weights(8, 8, seed=1)))
        return op.matmul(op.add(second, op.matmul(y, weights(8, 8, seed=2))), weights(8, 8, seed=3)), first

    found = report_of(net, x=(4, 8), y=(4, 8))["graph"]
    assert found["inputs"] == 2
    reads = [sources for _, sources in found["calls"]]
    assert reads[0] == [0]
    assert any(1 in sources for sources in reads)
    assert all(source < 2 + index for index, sources in enumerate(reads) for source in sources)
    assert found["results"] == [[2 + len(reads) - 1], [2]]


def test_fused_kernels_say_what_they_compute() -> None:
    report = report_of(lambda x: op.nn.relu(op.add(op.matmul(x, weights(8, 8)), weights(8))), x=(4, 8))
    [[name, sources]] = report["graph"]["calls"]
    assert sources == [0]
    assert report["computes"] == {name: "matmul + bias + relu"}


def test_a_view_stands_for_what_it_is_of() -> None:
    report = report_of(lambda x: op.matmul(op.reshape(x, (2, 16)), weights(16, 4)), x=(4, 8))
    last = report["graph"]["calls"][-1]
    assert last[1] in ([0], [1])
    assert report["graph"]["results"] == [[len(report["graph"]["calls"])]]


def test_without_fusion_every_operator_is_a_kernel() -> None:
    report = report_of(lambda x: op.nn.relu(op.exp(x)), opt_level=0, x=(4,))
    assert [sources for _, sources in report["graph"]["calls"]] == [[0], [1]]
    assert report["computes"] == {}


def test_an_output_that_is_an_input() -> None:
    assert report_of(lambda x: x, x=(2, 3))["graph"] == {"inputs": 1, "calls": [], "results": [[0]]}

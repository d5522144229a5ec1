"""A profile on a GPU: every kernel of the graph, timed by events, beside its limit. Needs a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import relaxc
from relaxc.service.runtime import load
from relaxc.service.runtime.gpu_peak import GpuPeak
from relaxc.service.runtime.profile import profile
from tests import zoo
from tests.gpu import needs_gpu

pytestmark = needs_gpu


def test_every_kernel_of_a_network_is_timed(tmp_path: Path) -> None:
    model = zoo.build("bert", size="small")
    zoo.write_onnx(model, tmp_path / "bert.onnx")
    options = relaxc.CompileOptions(precision=relaxc.Precision.FP16)
    made = relaxc.compile(tmp_path / "bert.onnx", target="cuda", output=tmp_path / "bert.so", options=options)
    session = load(tmp_path / "bert.so")
    given = {spec.name: np.ones(spec.shape, spec.dtype) for spec in session.signature.inputs}
    report = profile(session, given, runs=9)
    calls = [name for name, *_ in made.manifest.passes["graph"]["calls"]]
    assert {row.function: row.calls for row in report.functions} == {name: calls.count(name) for name in set(calls)}
    assert all(0 < row.time_ms < 5 for row in report.functions)
    assert isinstance(report.peak, GpuPeak)
    assert all(row.of_limit is None or row.of_limit <= 1 for row in report.functions), report.functions
    products = [row for row in report.functions if row.instruction]
    assert products and all(row.instruction.startswith("wgmma.") for row in products)
    assert 0 < report.tensor_share < 1
    # Events part what overlaps: the run without them takes less than their sum, and more than its largest kernel.
    assert max(row.time_ms / row.calls for row in report.functions) < report.total_ms
    assert session(given).keys() == {spec.name for spec in session.signature.outputs}

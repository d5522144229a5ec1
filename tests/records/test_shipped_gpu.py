"""Records that come with relaxc for a GPU: what they say, and a model that is compiled from them without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.records.files import read
from relaxc.service.records.record import RecordTarget
from relaxc.service.records.sources import SHIPPED

FOLDER = SHIPPED / "cuda-sm_90a"


def test_each_beat_the_default_of_its_template_on_a_named_device() -> None:
    records = list(read(FOLDER))
    assert records
    for one in records:
        assert one.host.startswith("NVIDIA H"), one.host
        assert one.gain is not None and one.gain > 1.01, one.shapes
        assert (one.target, one.threads, one.trace) == (RecordTarget("cuda", arch="sm_90a"), 1, "")


def test_the_folder_names_its_target() -> None:
    from relaxc.service.lowering.target import resolve

    target = resolve((FOLDER / "target.json").read_text())
    assert RecordTarget.of(target).name == FOLDER.name
    assert target.name == "cuda-sm90"


@pytest.mark.slow
def test_a_layer_of_bert_is_compiled_from_them(tmp_path: Path) -> None:
    import torch

    from benchmarks.gpu.models import model_of
    from relaxc.service.compiler import load_and_schedule, prepare
    from relaxc.service.compiling.stages import Stages
    from relaxc.service.dump import no_dump

    module, inputs = model_of("bert", 1, layers=1)
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, strict=False), tmp_path / "layer.pt2")
    request = prepare(tmp_path / "layer.pt2", target="cuda-sm90")
    rows = load_and_schedule(request, Stages(lambda event: None), no_dump).scheduled.report
    used = {row["record"]["digest"] for row in rows if row["source"] == "record"}
    assert used and used <= {one.digest for one in read(FOLDER)}
    assert not any(row["passed_over"] for row in rows)

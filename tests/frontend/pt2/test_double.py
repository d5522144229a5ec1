"""A program in double precision: as float32 has it but for what that rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from relaxc.service import frontend
from relaxc.service.request import ModelFormat
from relaxc.service.runtime.inputs import random_inputs
from relaxc.service.runtime.measure import measure
from tests import zoo


@pytest.mark.sampled("cnn")
@pytest.mark.parametrize("family", ["cnn", "bert", "unet", "gpt2"])
def test_a_program_is_the_same_in_both(family: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    zoo.write_pt2(zoo.build(family), path)
    inputs = random_inputs(frontend.inspect(path, ModelFormat.PT2).signature)
    run = frontend.double_reference(path, ModelFormat.PT2)
    assert run is not None
    found, wanted = run(inputs), frontend.reference(path, ModelFormat.PT2)(inputs)
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype
        assert measure(found[name], each).max_scaled < 1e-4 or each.dtype.kind in "ib"


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tiny = torch.nn.Parameter(torch.full((4,), 2.0**-40))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(4)
        return ((x + self.tiny).to(torch.float32) + zeros - x) * torch.ones_like(x, dtype=torch.float32)


def test_float32_is_rounded_nowhere_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Tiny().eval(), (torch.ones(4),)), path)
    run = frontend.double_reference(path, ModelFormat.PT2)
    assert run is not None
    (found,) = run({"x": np.ones(4, "float32")}).values()
    np.testing.assert_array_equal(found, np.full(4, 2.0**-40, "float32"))

"""Each operator that a CPU takes is scheduled for CUDA: the families of the converters' tests, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from relaxc.service.frontend.pt2 import frontend
from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions
from tests.frontend.pt2 import test_ops
from tests.frontend.pt2.support import export

X, SMALL = torch.rand(3, 3, 4) - 0.5, torch.rand(3, 4)
NUMBERS = torch.arange(-4, 4).reshape(2, 4)
HEADS = tuple(torch.rand(2, 4, n, 8) for n in (6, 10, 10))
FAMILIES: dict[str, tuple[Any, ...]] = {
    "indexing": (X, torch.tensor([0, -1, 2]), torch.rand(3, 3) > 0.5),
    "unary": (SMALL,),
    "arithmetic": (torch.rand(2, 4), torch.rand(2, 4) + 0.2, NUMBERS, NUMBERS.abs() + 1),
    "activations": (SMALL,),
    "reductions": (torch.rand(3, 4, 5), torch.arange(-3, 9).reshape(3, 4)),
    "shapes": (torch.rand(4, 3, 4),),
    "creation": (SMALL,),
    "resizes": (torch.rand(1, 2, 5, 6), torch.rand(1, 3, 3, 2)),
}


@pytest.mark.parametrize(
    "name", ["creation", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name != "creation")]
)
def test_a_family_is_scheduled(name: str, tmp_path: Path) -> None:
    module = test_ops.Module(getattr(test_ops, f"_{name}"))
    path = export(tmp_path / "m.pt2", module, *FAMILIES[name])
    spec = resolve("cuda-sm90")
    model = frontend.load(path, shapes={})
    made = schedule(optimize(model.module, to_tvm(spec), CompileOptions()).module, spec)
    assert made.report and all(row["rule"] for row in made.report)

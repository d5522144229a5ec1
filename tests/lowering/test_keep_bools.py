"""What comparisons gave is bool where it is read again from a kernel's own buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from relaxc.service import compiler
from relaxc.service.runtime import load
from tests.frontend.pt2.support import export


class Same(torch.nn.Module):
    """Asks of one tensor twice whether it is finite, and joins the answers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp(x + 1, x + 1)


def test_comparisons_are_kept_in_a_buffer(tmp_path: Path) -> None:
    x = torch.linspace(-9, 9, 64).reshape(8, 8)
    x[0, :3] = torch.tensor([float("inf"), -float("inf"), float("nan")])
    path = export(tmp_path / "m.pt2", Same(), x)
    compiler.run(compiler.prepare(path), tmp_path, lambda event: None)
    (got,) = load(tmp_path / "model.so")(x=x.numpy()).values()
    np.testing.assert_allclose(got, Same()(x).numpy(), rtol=1e-6)

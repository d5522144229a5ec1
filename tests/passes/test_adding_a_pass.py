"""docs/adding_a_pass.md: its plugins run, and it names every phase."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tvm.relax import op

from relaxc.service.passes import load_plugin, optimize
from relaxc.service.passes.phase import PHASES
from relaxc.service.request import CompileOptions
from tests.passes.graphs import TARGET, graph

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_pass.md").read_text(encoding="utf-8")
PLUGINS = [block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "import" in block]


@pytest.mark.parametrize("name", PHASES)
def test_every_phase_is_described(name: str) -> None:
    assert f"\n| `{name}` |" in PAGE


@pytest.mark.parametrize("source", PLUGINS, ids=range(len(PLUGINS)))
def test_the_plugins_of_the_page_run(source: str, tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    module = graph(lambda x: op.nn.gelu(x), x=("n", 4))
    optimized = optimize(module, TARGET, CompileOptions(), plugins=[load_plugin(path)])
    assert "gelu_tanh" in optimized.report.fusions or "1 calls" in capfd.readouterr().out


def test_there_are_plugins_on_the_page() -> None:
    assert len(PLUGINS) == 2

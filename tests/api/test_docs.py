"""docs/api.md: every block of it runs as it stands, and every call is in it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from service.api.app import create_app
from service.api.problems import OF_HTTP
from tests.api.conftest import COMPILE, ROOT, RunningServer, make_onnx

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that compiles."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), COMPILE)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, with the files that the page speaks of."""
    import torch

    folder = tmp_path_factory.mktemp("reader")
    (folder / "model.onnx").write_bytes(make_onnx(8))
    torch.manual_seed(0)
    program = torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),))
    torch.export.save(program, folder / "model.pt2")
    external = onnx.load_from_string(make_onnx(64))
    onnx.external_data_helper.set_external_data(external.graph.initializer[0], "weights.bin")
    (folder / "weights.bin").write_bytes(external.graph.initializer[0].raw_data)
    external.graph.initializer[0].ClearField("raw_data")
    (folder / "external.onnx").write_bytes(external.SerializeToString())
    return folder


@pytest.mark.parametrize("block", BLOCKS, ids=[block.split("\n", 1)[0][:60] for block in BLOCKS])
def test_a_block_runs(compiler: RunningServer, folder: Path, block: str) -> None:
    script = block.replace("localhost:8000", compiler.url)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_call_is_shown() -> None:
    shown = re.sub(r"\$digest", "{digest}", "".join(BLOCKS)).replace("/problems/unknown-format", "/problems/{code}")
    missing = [path for path in create_app().openapi()["paths"] if f"localhost:8000{path}" not in shown]
    assert not missing


def test_every_code_of_http_is_listed() -> None:
    for code, kind in OF_HTTP.items():
        assert re.search(rf"\| `{code}` \| {kind.status} \|", PAGE), code

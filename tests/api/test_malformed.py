"""The table of damaged and hostile models over HTTP: each gives its documented error, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relaxc.service.errors import by_code
from tests.api.conftest import COMPILE, RunningServer, make_onnx
from tests.api.test_compile import problem_of
from tests.malformed_onnx import MALFORMED_ONNX
from tests.malformed_pt2 import MALFORMED as MALFORMED_PT2
from tests.waiting import until

CASES = {
    f"{kind}: {name}": case
    for kind, table in (("onnx", MALFORMED_ONNX), ("pt2", MALFORMED_PT2))
    for name, case in table.items()
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that compiles."""
    running = RunningServer(tmp_path_factory.mktemp("cache"), COMPILE)
    yield running
    running.stop()


@pytest.mark.sampled(most=12)
@pytest.mark.parametrize("name", CASES)
def test_a_malformed_model(compiler: RunningServer, tmp_path: Path, name: str) -> None:
    build, code = CASES[name]
    path = build(tmp_path)
    beside = [other for other in sorted(path.parent.iterdir()) if other != path]
    plain = [other for other in beside if other.is_file() and not other.is_symlink()]
    if plain != beside:
        code = "model-malformed"  # a link or a pipe cannot be uploaded: the data is not there
    parts = [("model", (path.name, path.read_bytes()))]
    parts += [("data", (other.name, other.read_bytes())) for other in plain]
    answer = compiler.client.post("/v1/compile", files=parts)
    problem = problem_of(answer)
    assert problem["code"] == code, problem["detail"]
    assert answer.status_code == by_code()[code].http_status
    until(lambda: not compiler.jobs())
    assert compiler.client.get("/healthz").status_code == 200
    assert not list(compiler.cache.glob("jobs/*/*-*"))


@pytest.mark.slow
def test_after_all_of_them_a_good_model_compiles(compiler: RunningServer) -> None:
    answer = compiler.client.post("/v1/compile", files={"model": make_onnx(8)})
    assert answer.status_code == 200
    manifest = compiler.client.get(answer.headers["link"].partition(">")[0].strip("<")).json()
    assert manifest["verification"]["passed"]
    assert not compiler.jobs()

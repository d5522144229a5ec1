"""Two commits build one model, each with its own packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import helper

from tests.replay import side
from tests.replay.cases import Case, chosen
from tests.replay.compare import changes
from tests.replay.worker import unpackaged

CASE = Case("add", "fp32", "x86-64-v3")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This tree as a repository of one commit."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    made = tmp_path / "repository"
    for name in ("service", "schedules", "tuning_logs"):
        shutil.copytree(side.ROOT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(side, "ROOT", made)
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setitem(os.environ, f"{name}_NAME", "test")
        monkeypatch.setitem(os.environ, f"{name}_EMAIL", "test@localhost")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "base"]):
        subprocess.run(["git", "-C", str(made), *command], check=True)
    return made


def _model(path: Path) -> Path:
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 8]) for name in "xy"]
    nodes = [helper.make_node("Add", ["x", "x"], ["z"]), helper.make_node("Exp", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "add", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


@pytest.mark.slow
def test_only_what_a_commit_changed_is_named(repository: Path, tmp_path: Path) -> None:
    rule = repository / "schedules" / "cpu" / "elementwise" / "injective.py"
    assert rule.read_text().count("    version = ") == 1
    rule.write_text(rule.read_text().replace("    version = ", "    version = 1"))
    model = _model(tmp_path / "add.onnx")
    base, head = side.Side("HEAD", tmp_path / "replay"), side.Side(side.WORKING, tmp_path / "replay")
    try:
        assert base.digest != head.digest
        before, after = base.build(CASE, model, tmp_path / "texts"), head.build(CASE, model)
        ((name, said),) = changes(before, after)
        assert name in before["kernels"] and said.startswith("plan: cpu.injective ")
        assert "T.exp" in (tmp_path / "texts" / f"{name}.tir.py").read_text()
    finally:
        base.close()
        head.close()
    again = side.Side("HEAD", tmp_path / "replay")
    assert again.build(CASE, model) == before  # read, not built
    assert again._process is None


@pytest.mark.slow
def test_a_process_that_dies_is_no_end_of_a_replay(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "service" / "compiler.py").write_text("import os\nos._exit(3)\n")
    made = side.Side(side.WORKING, tmp_path / "replay")
    model = _model(tmp_path / "add.onnx")
    assert made.build(CASE, model)["died"] == "with status 3"
    assert made._process is None


def test_names_of_packages_are_no_part_of_a_text() -> None:
    given = "relaxc.service.passes, relaxc.schedules, relaxc.plan"
    assert unpackaged(given) == given.replace("relaxc.s", "s")


def test_a_seed_draws_the_same_cases() -> None:
    drawn = chosen(["a", "b"], ["fp32", "bf16"], ["t", "u"], most=3, seed="x")
    assert len(drawn) == 3 and drawn == sorted(drawn)
    assert drawn == chosen(["a", "b"], ["fp32", "bf16"], ["t", "u"], most=3, seed="x")
    assert len(chosen(["a", "b"], ["fp32", "bf16"], ["t", "u"], most=100)) == 8
    assert len({case.id for case in drawn}) == 3

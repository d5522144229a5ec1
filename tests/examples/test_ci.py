"""The workflow of docs/ci.md, run step by step as a CI job does: from records made here, and from the shipped ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml

from benchmarks.peers.cases import STANDARD, Case
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.lowering.target import missing_features, resolve
from relaxc.service.records.files import SUFFIX, append, read, remove
from relaxc.service.records.record import RecordTarget
from relaxc.service.records.sources import SHIPPED
from tests import zoo
from tests.records.samples import record_of_row
from tests.test_layers import ROOT
from tests.waiting import PATIENCE_S

WORKFLOW = yaml.safe_load((ROOT / "examples/ci/compile.yml").read_text(encoding="utf-8"))["jobs"]["compile"]
# A GPU's folder has what beat the defaults in models of 16 bits, and not every hot kernel of these.
FOLDERS = sorted({file.parent for file in SHIPPED.glob(f"llvm-*/*{SUFFIX}")})
SHIPPED_TARGETS = pytest.mark.parametrize(
    "folder",
    [pytest.param(folder, id=folder.name) for folder in FOLDERS]
    or [pytest.param(None, marks=pytest.mark.skip(reason="tuning_logs/ has no records yet"))],
)


def feed_forward(path: Path, rows: int, width: int, hidden: int) -> Path:
    """y = gelu(x @ a + c) @ b + d + x: with 128 rows, 768 and 3072 the two heaviest kernels of BERT-base."""
    rng, float32 = np.random.default_rng(0), onnx.TensorProto.FLOAT
    shapes = {"a": (width, hidden), "b": (hidden, width), "c": (hidden,), "d": (width,)}
    arrays = {name: rng.standard_normal(shape, np.float32) / 40 for name, shape in shapes.items()}
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = [("MatMul", ["x", "a"], "h"), ("Add", ["h", "c"], "i"), ("Gelu", ["i"], "g"), ("MatMul", ["g", "b"], "m")]
    nodes += [("Add", ["m", "d"], "n"), ("Add", ["n", "x"], "y")]
    x, y = (onnx.helper.make_tensor_value_info(name, float32, [1, rows, width]) for name in "xy")
    made = [onnx.helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes]
    graph = onnx.helper.make_graph(made, "feed_forward", [x], [y], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9), path)
    return path


class Checkout:
    """A repository as the workflow wants it, and the steps of the workflow in it, each in a shell of its own."""

    def __init__(self, root: Path, target: str) -> None:
        self.root = root
        (root / "ci").mkdir(parents=True)
        (root / "ci/target.json").write_text(target)
        (root / "bin").mkdir()
        (root / "bin/relaxc").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m relaxc "$@"\n')
        (root / "bin/relaxc").chmod(0o755)
        self.records = root / "tuning_logs"
        self.records.mkdir()

    def step(self, name: str, *, timeout_s: float = 2 * PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Runs it, as the runner of GitHub does."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RELAXC_")}
        env = {
            **kept,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RELAXC_CACHE_DIR": str(self.root / "cache"),
            "GITHUB_OUTPUT": str(self.root / "output"),
            **WORKFLOW["env"],
        }
        [script] = [each["run"] for each in WORKFLOW["steps"] if each.get("name") == name]
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        return subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def key(self) -> str:
        """What the step `key` leaves for the step `cache`."""
        (self.root / "output").unlink(missing_ok=True)
        done = self.step("key")
        assert done.returncode == 0, done.stderr
        name, _, key = (self.root / "output").read_text().strip().partition("=")
        assert name == "key" and len(key) == 64
        return key

    def manifest(self) -> Manifest:
        """Of what the step `compile` leaves."""
        return Manifest.read(self.root / "model.so")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """With a small model, and records of the parameters that an untuned compile chose."""
    spec = resolve("x86-64-v3")
    made = Checkout(tmp_path_factory.mktemp("checkout"), json.dumps(spec.to_dict()))
    feed_forward(made.root / "model.onnx", 32, 64, 128)
    done = made.step("compile")  # there is no record yet
    assert done.returncode == 4 and "[not-tuned]" in done.stderr
    command = [str(made.root / "bin/relaxc"), "compile", "model.onnx", "-o", "model.so", "--target", "x86-64-v3"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RELAXC_CACHE_DIR": str(made.root / "cache")}
    subprocess.run(command, cwd=made.root, env=env, capture_output=True, timeout=2 * PATIENCE_S, check=True)
    append(made.records, [record_of_row(dict(row), spec) for row in made.manifest().schedule if row["parameters"]])
    (made.root / "model.so").unlink()
    return made


def _hot(manifest: Manifest) -> list[Any]:
    return [row for row in manifest.schedule if row["source"] == "record"]


@pytest.mark.slow
def test_the_artifact_comes_from_the_committed_records_bit_for_bit(checkout: Checkout) -> None:
    key, contents = checkout.key(), []
    for _ in range(2):
        done = checkout.step("compile")
        assert done.returncode == 0, done.stderr
        contents.append((checkout.root / "model.so").read_bytes())
        shutil.rmtree(checkout.root / "cache")  # another machine, or another day
    assert contents[0] == contents[1]
    assert checkout.key() == key
    digests = {row["record"]["digest"] for row in _hot(checkout.manifest())}
    assert digests == {one.digest for one in read(checkout.records)}


@pytest.mark.slow
def test_a_record_that_is_missing_fails_the_job_and_is_named(checkout: Checkout) -> None:
    before, missing = checkout.key(), next(iter(read(checkout.records)))
    remove(checkout.records, [missing])
    try:
        done = checkout.step("compile")
        assert done.returncode == 4 and missing.workload in done.stderr
        assert "relaxc tune" in done.stderr
        assert checkout.key() != before  # no artifact of other records is taken from the cache
    finally:
        append(checkout.records, [missing])
    assert checkout.key() == before


def _shipped(folder: Path, root: Path) -> Checkout:
    text = (folder / "target.json").read_text(encoding="utf-8")
    assert RecordTarget.of(resolve(text)).name == folder.name
    made = Checkout(root, text)
    shutil.copytree(SHIPPED, made.records, dirs_exist_ok=True)
    return made


def _check(made: Checkout) -> None:
    """What the workflow made is of records alone, and right where this machine can tell."""
    manifest = made.manifest()
    assert _hot(manifest)
    assert {row["record"]["digest"] for row in _hot(manifest)} <= {one.digest for one in read(SHIPPED)}
    assert manifest.verified is (None if missing_features(manifest.target) else True)


@pytest.mark.slow
@SHIPPED_TARGETS
def test_the_heaviest_kernels_of_bert_compile_from_shipped_records(folder: Path, tmp_path: Path) -> None:
    made = _shipped(folder, tmp_path)
    feed_forward(made.root / "model.onnx", 128, 768, 3072)
    done = made.step("compile")
    assert done.returncode == 0, done.stderr
    _check(made)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@SHIPPED_TARGETS
@pytest.mark.parametrize("case", STANDARD, ids=lambda case: case.label)
def test_the_models_that_we_state_times_for_compile_from_shipped_records(
    folder: Path, case: Case, tmp_path: Path
) -> None:
    made = _shipped(folder, tmp_path)
    model = zoo.sized(zoo.build(case.model, size=case.size), batch=case.batch, tokens=case.tokens)
    zoo.write_onnx(model, made.root / "model.onnx")
    done = made.step("compile", timeout_s=1000)
    assert done.returncode == 0, done.stderr
    _check(made)


def test_every_command_of_the_workflow_exists() -> None:
    from tests.test_documented import _exists

    scripts = "\n".join(step["run"] for step in WORKFLOW["steps"] if "run" in step)
    commands = [line.strip() for line in scripts.replace("key=$(", "").replace(")\n", "\n").splitlines()]
    ours = [line for line in commands if line.startswith("relaxc ")]
    assert len(ours) == 2 and all(map(_exists, [*ours, f"relaxc compile {WORKFLOW['env']['OPTIONS']}"]))

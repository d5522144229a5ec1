"""What relaxc of 463a2ac2 made, whose import name was `service`: its artifacts load, its records are read or stale."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from relaxc.service import compiler
from relaxc.service.records.files import read
from relaxc.service.records.stale import current_versions, stale
from relaxc.service.runtime import load
from tests import zoo
from tests.former import source_of

COMMIT = "463a2ac2597187136261faa388e270e98f235ed7"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source_of(COMMIT, tmp_path_factory.mktemp("former"))


def test_its_artifacts_load_and_compute_what_ours_do(source: Path, tmp_path: Path) -> None:
    model, made = zoo.export("mlp", "onnx"), tmp_path / "former.so"
    command = [sys.executable, "-m", "service", "compile", str(model), "-o", str(made), "--target", "x86-64-v2"]
    environment = {**os.environ, "PYTHONPATH": str(source), "RELAXC_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiler.run(compiler.prepare(model, target="x86-64-v2"), tmp_path, lambda event: None)
    former, ours = load(made), load(tmp_path / "model.so")
    (spec,) = former.signature.inputs
    x = np.random.default_rng(0).standard_normal([int(size) for size in spec.shape]).astype(spec.dtype)
    for name, want in ours({spec.name: x}).items():
        np.testing.assert_allclose(former({spec.name: x})[name], want, rtol=1e-5, atol=1e-6)


def test_its_records_are_read_and_those_of_older_templates_say_so(source: Path) -> None:
    records = read(source / "tuning_logs")
    assert len(records) > 100
    older = {reason for _, reason in stale(records, current_versions())}
    renamed = "an older relaxc named its kernel otherwise: tune again"
    assert older == {"cpu.rows has version 3 now, the record is for 2", renamed}

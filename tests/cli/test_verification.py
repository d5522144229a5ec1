"""A wrong number never passes: an artifact that a plugin makes wrong is an error, and with --no-verify says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.frontend import identify
from relaxc.service.jobs.local.calls import inspect_local
from tests.cli.conftest import Relaxc
from tests.zoo import export

WRONG = """
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

x = wildcard()
PATTERNS = [(is_op("relax.nn.relu")(x), lambda matched, parts, ops: relax.op.nn.silu(parts[x]))]
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.py"
    path.write_text(WRONG)
    return path


def test_wrong_numbers_exit_5_and_leave_no_file(relaxc: Relaxc, wrong: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.so"
    done = relaxc("compile", export("mlp", "onnx", dynamic=True), "-o", output, "--plugin", wrong, "--json")
    assert done.returncode == 5, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "verification-failed"
    assert not error["fields"]["report"]["passed"]
    assert not output.exists()


@pytest.mark.slow
def test_verify_compares_again_and_on_inputs_of_the_users_own(relaxc: Relaxc, wrong: Path, tmp_path: Path) -> None:
    model, right, other = export("mlp", "onnx", dynamic=True), tmp_path / "right.so", tmp_path / "wrong.so"
    (spec,) = inspect_local(model, identify(model))["signature"]["inputs"]
    np.savez(tmp_path / "in.npz", **{spec["name"]: np.full((2, *spec["shape"][1:]), 1e4, "float32")})
    for output, more in ((right, ()), (other, ("--plugin", wrong))):
        assert relaxc("compile", model, "-o", output, "--no-verify", *more).returncode == 0
    done = relaxc("verify", right, model, "-i", tmp_path / "in.npz")
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout
    done = relaxc("verify", other, model, "--json")
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "verification-failed"


@pytest.mark.slow
def test_no_verify_keeps_it_and_says_what_is_wrong(relaxc: Relaxc, wrong: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.so"
    model = export("mlp", "onnx", dynamic=True)
    done = relaxc("compile", model, "-o", output, "--plugin", wrong, "--no-verify")
    assert done.returncode == 0, done.stderr
    assert "FAILED" in done.stdout
    manifest = Manifest.read(output)
    assert manifest.verified is False
    shown = relaxc("inspect", output).stdout
    assert "FAILED" in shown
    assert "tolerance" in shown


def test_a_broken_plugin_is_a_request_error_with_its_line(relaxc: Relaxc, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("PATTERNS = [1]\n")
    arguments = ("-o", tmp_path / "out.so", "--plugin", tmp_path / "broken.py")
    done = relaxc("compile", export("mlp", "onnx", dynamic=True), *arguments)
    assert done.returncode == 2
    assert "[plugin-error]" in done.stderr
    assert "broken.py" in done.stderr

"""`relaxc rebuild`: the same bytes of the same request, and by name what has others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Relaxc
from tests.cli.test_verification import WRONG
from tests.zoo import export


@pytest.mark.slow
def test_an_artifact_is_made_again_and_another_is_told_apart(relaxc: Relaxc, tmp_path: Path) -> None:
    model, own, other = export("mlp", "onnx", dynamic=True), tmp_path / "own.so", tmp_path / "other.so"
    (plugin := tmp_path / "wrong.py").write_text(WRONG)
    options = ("--no-verify", "-O", "1", "--target", "x86-64-v3")
    for output, more in ((own, ()), (other, ("--plugin", plugin))):
        assert relaxc("compile", model, "-o", output, *options, *more).returncode == 0
    done = relaxc("rebuild", own, model)
    assert done.returncode == 0, done.stderr
    assert "equal" in done.stdout
    done = relaxc("rebuild", other, model, "--json")
    assert done.returncode == 6, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "rebuild-differs"

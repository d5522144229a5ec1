"""The wheel relaxc-runtime: the runtime's own modules, which run an artifact with numpy and apache-tvm-ffi alone."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import relaxc
from relaxc.service.runtime import load
from relaxc.service.runtime.inputs import random_inputs
from runtime_wheel import backend, modules
from tests import zoo
from tests.runtime.conftest import artifact, linear
from tests.test_layers import ROOT

__all__ = ["artifact", "linear"]

_NEEDED = ("numpy", "apache-tvm-ffi", "typing-extensions")


def test_the_modules_import_nothing_but_numpy_and_tvm_ffi() -> None:
    found = modules.closure()
    assert {f"relaxc.service.{name}" for name in ("runtime.session", "artifact.manifest", "machine")} <= set(found)
    assert len(found) <= 38
    outside = {name.split(".")[0] for path in found.values() for name in modules.imported(path)}
    assert outside - set(sys.stdlib_module_names) == {"numpy", "tvm_ffi", "relaxc"}
    assert modules.settings_used() == {"threads", "part"}


def test_the_wheel_has_our_license_beside_tvms(tmp_path: Path) -> None:
    backend.write_project(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"LICENSE", "NOTICE", "LICENSE.apache-tvm"}


def test_every_packed_module_can_be_imported_from_the_package(tmp_path: Path) -> None:
    backend.write_project(tmp_path)
    names = [name.replace("relaxc.service", backend.NAME, 1) for name in modules.closure()]
    code = f"import importlib, sys; sys.path.insert(0, {str(tmp_path)!r}); [*map(importlib.import_module, {names})]"
    done = ran(Path(sys.executable), code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that has the wheel, numpy and apache-tvm-ffi, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    made = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    subprocess.run([*made, str(ROOT / "runtime_wheel")], check=True, cwd=folder)
    [wheel] = folder.glob("relaxc_runtime-*.whl")
    assert wheel.stat().st_size < 3 << 20
    venv.create(folder / "env", symlinks=True)
    [packages] = (folder / "env/lib").glob("python*/site-packages")
    site = Path(np.__file__).parents[1]
    for name in _NEEDED:
        for top in {file.parts[0] for file in metadata.files(name) or []} - {"..", "__pycache__"}:
            (packages / top).symlink_to(site / top)
    python = folder / "env/bin/python"
    subprocess.run([*pip, f"--python={python}", "install", "-q", "--no-index", str(wheel)], check=True)
    return python


def ran(python: Path, code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RELAXC_", "PYTHON"))}
    command = [python, "-c", code]
    return subprocess.run(command, cwd=folder, env={**env, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_it_gives_the_numbers_that_relaxc_gives(python: Path, tmp_path: Path) -> None:
    made = relaxc.compile(zoo.export("mlp", "onnx"), output=tmp_path / "out.so")
    inputs = random_inputs(made.manifest.signature)
    np.savez(tmp_path / "in.npz", **inputs)
    code = """
import sys
import numpy as np
from relaxc_runtime import load
from relaxc_runtime.tvm_libraries import runtime_version
session = load("out.so")
np.savez("out.npz", **session(dict(np.load("in.npz"))))
loaded = sorted({"tvm", "torch", "relaxc", "pydantic", "psutil"} & set(sys.modules))
print(runtime_version(), session.threads, loaded)
"""
    done = ran(python, code, tmp_path, RELAXC_THREADS="2")
    assert (done.stdout, done.stderr) == (f"{metadata.version('apache-tvm')} 2 []\n", "")
    found = np.load(tmp_path / "out.npz")
    for name, array in load(tmp_path / "out.so")(inputs).items():
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.slow
def test_bfloat16_asks_for_ml_dtypes_by_name(python: Path, artifact: Callable[..., Path], tmp_path: Path) -> None:
    code = f"""
from relaxc_runtime import errors, load, random_inputs
session = load({str(artifact())!r})
try:
    session(random_inputs(session.signature))
except errors.InputType as error:
    print(error.code, error.remedy)
"""
    done = ran(python, code, tmp_path)
    assert (done.stdout, done.stderr) == ("input-type pip install ml_dtypes\n", "")


@pytest.mark.slow
def test_a_setting_that_is_none_is_refused(python: Path, artifact: Callable[..., Path], tmp_path: Path) -> None:
    code = f"from relaxc_runtime import load; load({str(artifact())!r})"
    assert "RELAXC_THREADS is 'x', which is no number" in ran(python, code, tmp_path, RELAXC_THREADS="x").stderr

"""The wheel, as what `docker/build` and a user install: outside of the checkout it compiles, tunes and serves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
import venv
from pathlib import Path

import httpx
import pytest

from relaxc.service.client import Client
from tests import zoo
from tests.test_layers import ROOT


@pytest.fixture(scope="module")
def relaxc(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a fresh environment that has the wheel, beside the libraries that are here."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # A path to the checkout would have pip find relaxc installed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    made = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", str(ROOT)]
    subprocess.run(made, check=True, cwd=folder, env=env)
    [wheel] = folder.glob("relaxc-*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env/bin/python"
    install = [*pip, f"--python={python}", "install", "-q", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, env=env)
    [packages] = (folder / "env/lib").glob("python*/site-packages")
    # Read as a path alone: `.pth` files in it, such as that of the checkout, are not followed.
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in _libraries()))
    return [str(folder / "env/bin/relaxc")]


def _libraries() -> list[str]:
    """Where TVM and the rest are, which is not the checkout."""
    import tvm

    return sorted({sysconfig.get_paths()["purelib"], str(Path(tvm.__file__).parents[1])} - {str(ROOT)})


def _environment(folder: Path) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RELAXC_", "PYTHON"))}
    return {**env, "RELAXC_CACHE_DIR": str(folder / "cache")}


def _run(command: list[str], folder: Path) -> str:
    env = _environment(folder)
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_it_compiles_runs_and_finds_the_shipped_records(relaxc: list[str], tmp_path: Path) -> None:
    where = "import relaxc, relaxc.service, relaxc.schedules, relaxc.tuning_logs; print(relaxc.__file__)"
    python = relaxc[0].replace("/relaxc", "/python")
    assert str(ROOT) not in _run([python, "-c", where], tmp_path)
    model = zoo.export("mlp", "onnx")
    _run([*relaxc, "compile", str(model), "-o", "out.so"], tmp_path)
    assert json.loads(_run([*relaxc, "run", "out.so", "--fill=random", "--json"], tmp_path))["outputs"]
    shipped = json.loads(_run([*relaxc, "records", "ls", "--json"], tmp_path))
    assert len(shipped["records"]) > 100


@pytest.mark.slow
def test_it_tunes(relaxc: list[str], tmp_path: Path) -> None:
    model = zoo.export("mlp", "onnx")
    tune = [*relaxc, "tune", str(model), "--trials", "4", "--again", "--records", "records", "--json"]
    assert json.loads(_run(tune, tmp_path))["trials"] >= 1


@pytest.mark.slow
def test_it_serves(relaxc: list[str], tmp_path: Path) -> None:
    """A compile over HTTP, by a server of the wheel; and the page, whose files are in it."""
    command = [*relaxc, "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=_environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        assert server.stdout is not None
        try:
            said = next(line for line in server.stdout if "listening on http" in line)
            url = said.split("listening on ")[1].split()[0]
            threading.Thread(target=server.stdout.read, daemon=True).start()  # a full pipe would stop it
            with Client(url) as client:
                made = client.compile(zoo.export("mlp", "onnx"), tmp_path / "out.so")
            assert not isinstance(made.manifest.verification, str)
            page = httpx.get(url, follow_redirects=True)
            assert (page.status_code, "<script" in page.text) == (200, True)
        finally:
            server.terminate()

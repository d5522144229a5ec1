"""The wheel, as what `docker/build` and a user install: outside of the checkout it compiles, tunes and serves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import tomllib
import venv
import zipfile
from email.parser import BytesParser
from pathlib import Path

import httpx
import pytest

from relaxc.service.client import Client
from tests import zoo
from tests.test_layers import ROOT

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# A path to the checkout would have pip find relaxc installed.
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, made of what git knows or would add: from `build/`, setuptools would pack what earlier builds left."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in _tracked():
        copy = folder / "checkout" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, copy, follow_symlinks=False)
    made = [*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", "./checkout"]
    subprocess.run(made, check=True, cwd=folder, env=ENV)
    [wheel] = folder.glob("relaxc-*.whl")
    return wheel


def _tracked() -> list[str]:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return [name for name in found if name and os.path.lexists(ROOT / name)]


def test_it_has_every_file_of_the_packages_and_no_other(wheel: Path) -> None:
    folders = ("service/", "schedules/", "tuning_logs/")
    wanted = {f"relaxc/{name}" for name in _tracked() if name.startswith(folders)}
    wanted |= {f"relaxc/{path.name}" for path in (ROOT / "relaxc").glob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == wanted


def test_its_metadata_is_what_an_index_takes(wheel: Path) -> None:
    """What `twine check` looks at, and a licence."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = BytesParser().parsebytes(archive.read(name))
        licenses = {path.rpartition("/")[2] for path in archive.namelist() if ".dist-info/licenses/" in path}
    assert licenses == {"LICENSE", "NOTICE"}
    assert (told["License-Expression"], told["Description-Content-Type"]) == ("Apache-2.0", "text/markdown")
    assert "Operating System :: POSIX :: Linux" in told.get_all("Classifier", [])
    assert told.get_payload(decode=True).decode() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(told.get_all("Provides-Extra", [])) >= {"onnx", "torch", "client", "server", "tune", "ray"}


def test_texts_name_images_of_the_version_that_pyproject_has() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "docs/docker.md", ROOT / "docker/compose.yaml")]
    texts.append((ROOT / "docker/kubernetes/kustomization.yaml").read_text(encoding="utf-8"))
    found = [re.findall(r"(?:relaxc(?:-cuda|-runtime)?:|newTag: )(\d[\d.]*\d)", text) for text in texts]
    assert [set(each) for each in found] == [{version}] * 3


@pytest.fixture(scope="module")
def relaxc(wheel: Path) -> list[str]:
    """The command of a fresh environment that has the wheel, beside the libraries that are here."""
    folder = wheel.parent
    venv.create(folder / "env", symlinks=True)
    python = folder / "env/bin/python"
    install = [
        *PIP,
        f"--python={python}",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        f"--find-links={folder}",
        "relaxc",
    ]
    subprocess.run(install, check=True, env=ENV)
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
def test_the_demo_needs_no_checkout_and_a_folder_named_as_ours_harms_nothing(relaxc: list[str], tmp_path: Path) -> None:
    for name in ("service", "schedules"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError")
    assert _run([*relaxc, "demo"], tmp_path).count("yes") == 2


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

"""The image that runs artifacts: what is in it, and that it gives Python's numbers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import relaxc
from relaxc.service.runtime import load
from relaxc.service.runtime.inputs import random_inputs
from tests import zoo
from tests.docker.conftest import size_of
from tests.docker.engine import docker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

LOCKED = ("--rm", "--read-only", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges")


@pytest.fixture(scope="module")
def runtime(image: str) -> str:
    """The name that `docker/build` gives it beside the service's."""
    name, colon, tag = image.partition(":")
    return f"{name}-runtime{colon}{tag}"


def test_it_has_at_most_150_mb(runtime: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_of(runtime, capsys) <= 150e6


def test_it_has_neither_python_nor_a_shell_nor_a_compiler(runtime: str) -> None:
    made = docker("create", runtime)
    try:
        with subprocess.Popen(["docker", "export", made], stdout=subprocess.PIPE) as exported:
            listed = subprocess.run(["tar", "-t"], stdin=exported.stdout, capture_output=True, text=True, check=True)
    finally:
        docker("rm", made)
    files = [Path(name) for name in listed.stdout.splitlines()]
    assert [path for path in files if path.match("opt/relaxc/bin/*")] == [Path("opt/relaxc/bin/relaxc-run")]
    assert not [path for path in files if path.parent.name in ("bin", "sbin") and path.parts[0] != "opt"]
    assert not [path for path in files if "python" in str(path) or "compiler" in str(path)]


def test_it_gives_pythons_numbers(runtime: str, tmp_path: Path) -> None:
    made = relaxc.compile(zoo.export("mlp", "onnx"), output=tmp_path / "model.so")
    inputs = random_inputs(made.manifest.signature)
    words = []
    for number, (name, array) in enumerate(inputs.items()):
        np.save(tmp_path / f"in{number}.npy", array)
        words += ["--input", f"{name}=/model/in{number}.npy"]
    out = tmp_path / "out"
    out.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    out.chmod(0o777)
    mounts = [f"--volume={tmp_path}:/model:ro", f"--volume={out}:/out"]
    said = docker("run", *LOCKED, *mounts, runtime, "/model/model.so", *words, "--outputs", "/out", "--json")
    want = load(made.path)(inputs)
    assert [row["name"] for row in json.loads(said)["outputs"]] == list(want)
    for index, array in enumerate(want.values()):
        assert np.load(out / f"{index}.npy").tobytes() == array.tobytes()


def test_it_says_what_it_is_made_of(runtime: str, tmp_path: Path) -> None:
    made = docker("create", runtime)
    try:
        docker("cp", f"{made}:/opt/relaxc/sbom.cdx.json", tmp_path / "bom.json")
    finally:
        docker("rm", made)
    bom = json.loads((tmp_path / "bom.json").read_bytes())
    names = {each["name"] for each in bom["components"]}
    assert {"relaxc", "apache-tvm", "apache-tvm-ffi", "libc6", "libstdc++6", "libgcc-s1"} <= names
    assert len(names) < 12, "what the service's image has is not in it"


def test_what_is_wrong_is_named(runtime: str) -> None:
    with pytest.raises(AssertionError, match=r"artifact-not-found: there is no file /model\.so"):
        docker("run", *LOCKED, runtime, "/model.so")
    assert "usage: relaxc-run" in docker("run", *LOCKED, runtime)

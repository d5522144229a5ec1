"""The image for GPU hosts and for cross-compiling: it compiles for an H100 and for aarch64, where neither is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import zoo
from tests.docker.composed import locked_down
from tests.docker.conftest import ROOT, size_of
from tests.docker.engine import docker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cuda(image: str) -> str:
    """What `docker/build-cuda` makes of the service's image. RELAXC_TEST_CUDA_IMAGE names one that is there already."""
    if named := os.environ.get("RELAXC_TEST_CUDA_IMAGE"):
        return named
    made = subprocess.run([ROOT / "docker/build-cuda", image, "--network", "host"], stderr=subprocess.PIPE, text=True)
    if "No matching distribution" in made.stderr:
        pytest.skip("NVIDIA's wheels are not to be had here")
    assert made.returncode == 0, made.stderr
    name, colon, tag = image.partition(":")
    return f"{name}-cuda{colon}{tag}"


@pytest.mark.parametrize("target", ["cuda-sm90", "cuda-sm80", "aarch64"])
def test_it_compiles_for_what_is_not_here(cuda: str, target: str, tmp_path: Path) -> None:
    model = zoo.export("mlp", "onnx")
    (tmp_path / "model.onnx").write_bytes(model.read_bytes())
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    tmp_path.chmod(0o777)
    options = ["--target", target, *(["--precision", "fp16"] if target.startswith("cuda") else [])]
    command = ["relaxc", "compile", "/work/model.onnx", "-o", f"/work/{target}.so", *options]
    settings = ["--env=RELAXC_SANDBOX=require", "--tmpfs=/var/lib/relaxc:uid=10001,mode=0700"]
    docker("run", "--rm", *locked_down(), *settings, f"--volume={tmp_path}:/work", cuda, *command)
    inspect = ["relaxc", "inspect", f"/work/{target}.so", "--json"]
    told = json.loads(docker("run", "--rm", *locked_down(), f"--volume={tmp_path}:/work:ro", cuda, *inspect))
    assert told["manifest"]["target"]["name"] == target


def test_it_says_what_it_adds(cuda: str, capsys: pytest.CaptureFixture[str]) -> None:
    size_of(cuda, capsys)
    bom = json.loads(docker("run", "--rm", *locked_down(), cuda, "cat", "/opt/relaxc/sbom.cdx.json"))
    assert {"nvidia-cuda-nvcc", "g++-aarch64-linux-gnu", "apache-tvm"} <= {each["name"] for each in bom["components"]}
    assert docker("image", "inspect", "--format={{.Config.User}}", cuda) == "10001:10001"

"""Artifacts of several parts: which one is loaded, its own code, and its own weights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from relaxc.service import machine
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.artifact.packing import Built, pack_parts
from relaxc.service.config import settings
from relaxc.service.errors import ArtifactCorrupt, InvalidOption, MachineMismatch
from relaxc.service.machine import Gpu
from relaxc.service.request import TargetSpec
from relaxc.service.runtime import load
from relaxc.service.runtime.library import chosen
from tests.runtime.conftest import Linears, manifest_of

HOST = TargetSpec("here", "llvm", triple=f"{machine.cpu().arch}-linux-gnu")
GPUS = tuple(TargetSpec(f"cuda-{arch}", "cuda", triple="", arch=arch, host=HOST) for arch in ("sm_80", "sm_90a"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set the setting `part`."""

    def ask(name: str) -> None:
        monkeypatch.setenv("RELAXC_PART", name)
        settings.cache_clear()

    yield ask
    monkeypatch.undo()
    settings.cache_clear()


def two_parts(linear: Linears, out: Path, embed_max_bytes: int = 1 << 30) -> list[Path]:
    """An artifact whose second part has twice the first one's matrix; both run on this CPU."""
    first = manifest_of(linear.signature, target=replace(HOST, name="first"))
    second = replace(first, target=replace(HOST, name="second"), schedule=({"function": "main"},))
    others = {**linear.weights, "w": linear.weights["w"] * 2}
    parts = [Built(linear.library, linear.weights, first), Built(linear.library, others, second)]
    return pack_parts(parts, out, embed_max_bytes=embed_max_bytes)


@pytest.mark.parametrize("embed", [1 << 30, 0], ids=["inside", "beside"])
def test_each_part_has_its_own_code_and_weights(tmp_path, linear, asked, embed):
    out = tmp_path / "two.so"
    assert len(two_parts(linear, out, embed)) == (1 if embed else 2)
    whole = Manifest.read(out)
    assert whole.target_names == "first,second" and len(whole.weights.tensors) == len(linear.weights) + 1
    given = {"x": np.ones((2, 64), np.float32), "ids": np.arange(2)}
    results = {}
    for name in ("first", "second"):
        asked(name)
        session = load(out)
        assert session.manifest.target.name == name and not session.manifest.others
        results[name] = session(**given)["y"]
    bias = linear.weights["b"].astype(np.float32)
    np.testing.assert_allclose(results["second"] - bias, 2 * (results["first"] - bias), rtol=1e-4, atol=1e-4)
    assert load(out).manifest.schedule == [{"function": "main"}]
    assert "memfd:two.so" in Path("/proc/self/maps").read_text()
    asked("third")
    with pytest.raises(InvalidOption, match="no part 'third'; there are first, second"):
        load(out)


_IN_A_SANDBOX = """
import os, sys
from pathlib import Path
from relaxc.service.artifact.manifest import Manifest, code_extent
from relaxc.service.process.sandbox.confine import confine
from relaxc.service.process.sandbox.confinement import Confinement, Place
from relaxc.service.runtime.library import load_library
file, folder = Path(sys.argv[1]), Path(sys.argv[2])
os.chdir(folder)
confine(folder, Confinement(reads=(file.parent,)), Place(os.getpid(), "a test"))
print(load_library(file, code_extent(file, Manifest.read(file), 1)))
"""


@pytest.mark.slow
def test_a_job_in_a_sandbox_loads_a_part(tmp_path, linear):
    two_parts(linear, tmp_path / "two.so")
    (tmp_path / "job").mkdir()
    command = [sys.executable, "-c", _IN_A_SANDBOX, str(tmp_path / "two.so"), str(tmp_path / "job")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ffi.Module" in done.stdout, done.stderr


def test_a_library_whose_section_has_another_name_is_damaged(tmp_path, linear, asked):
    out = tmp_path / "two.so"
    two_parts(linear, out)
    whole = Manifest.read(out)
    content = out.read_bytes()
    changed = content.replace(whole.others[0].section.encode() + b"\0", b".relaxc.gone.1\0")
    out.write_bytes(changed)
    asked("second")
    with pytest.raises(ArtifactCorrupt, match=r"is damaged: its bytes"):
        load(out)


@pytest.mark.parametrize(
    ("capability", "place"), [((8, 0), 0), ((8, 9), 0), ((9, 0), 1), ((10, 0), 0), ((12, 0), 0), ((7, 5), 0), (None, 0)]
)
def test_the_part_for_the_gpu_is_chosen(monkeypatch, capability, place):
    monkeypatch.setattr(machine, "gpu", lambda: None if capability is None else Gpu("some GPU", capability))
    assert chosen(GPUS) == place


def test_an_artifact_of_parts_is_refused_by_their_names(tmp_path, linear, monkeypatch):
    parts = [Built(linear.library, linear.weights, manifest_of(linear.signature, target=each)) for each in GPUS]
    pack_parts(parts, tmp_path / "gpus.so", embed_max_bytes=1 << 30)
    monkeypatch.setattr(machine, "gpu", lambda: Gpu("an old GPU", (7, 5)))
    with pytest.raises(MachineMismatch, match=r"for cuda-sm_80, cuda-sm_90a; .* 8\.0 \(an old GPU has 7\.5\)"):
        load(tmp_path / "gpus.so")


def test_one_part_is_the_file_that_it_was(tmp_path, linear):
    from relaxc.service.artifact import pack

    manifest = manifest_of(linear.signature)
    pack(linear.library, linear.weights, manifest, tmp_path / "a.so", embed_max_bytes=1 << 30)
    pack_parts([Built(linear.library, linear.weights, manifest)], tmp_path / "b.so", embed_max_bytes=1 << 30)
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


def test_what_sorts_is_there_without_tvm_itself() -> None:
    code = """
import sys
from relaxc.service.runtime.tvm_runtime import function
function("tvm.contrib.sort.topk")
sys.exit("tvm" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_file_in_the_place_of_one_that_is_loaded_has_its_own_code(
    artifact: Callable[..., Path], twice: Path, tmp_path: Path
) -> None:
    given = {"x": np.ones((2, 64), np.float32), "ids": np.arange(2)}
    path, found = tmp_path / "model.so", []
    once = artifact()
    for source in (once, twice, once, twice):
        shutil.copy(source, tmp_path / "new")
        (tmp_path / "new").replace(path)
        found.append(load(path, threads=1)(given)["y"])
    np.testing.assert_array_equal(found[1], 2 * found[0])
    np.testing.assert_array_equal(found[2:], found[:2])


def test_an_artifact_whose_name_is_no_text_is_loaded(artifact: Callable[..., Path], tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"net\xff.so")
    shutil.copyfile(artifact(), place)
    given = {"x": np.ones((2, 64), np.float32), "ids": np.arange(2)}
    assert load(place)(given).keys() == load(artifact())(given).keys()

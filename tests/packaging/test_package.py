"""`relaxc package`: what is in the folder, that it is the same each time, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

import relaxc
from relaxc.service import machine
from relaxc.service.artifact.blocks import seal
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import ArtifactCorrupt, InvalidOption, MachineMismatch
from relaxc.service.packaging.needed import needed_libraries
from relaxc.service.packaging.package import SUMS, make_package
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.packaging.native import Library
from tests.runtime.conftest import Linears

Make = Callable[..., Path]


def ran(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)


def test_it_has_the_runtime_and_nothing_of_the_compiler_in_12_mib(package: Path) -> None:
    made = json.loads((package.parent / "package.json").read_text())
    assert made["size_bytes"] < 12 << 20
    assert made["libraries"] == ["libtvm_ffi.so", "libtvm_runtime.so"]
    names = {path.name for path in (package / "lib").iterdir()}
    assert names == {"librelaxc_runtime.so", *made["libraries"], "cmake", "pkgconfig"}
    licenses = {path.name for path in (package / "licenses").iterdir()}
    assert licenses >= {f"{name}-LICENSE" for name in ("relaxc", "apache-tvm", "apache-tvm-ffi")} | {"relaxc-NOTICE"}
    assert ran("sha256sum", "--check", "--quiet", "--strict", SUMS, cwd=package).returncode == 0
    listed = {line.split("  ")[1] for line in (package / SUMS).read_text().splitlines()}
    assert listed == {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()} - {SUMS}


def test_only_the_abi_is_exported_and_only_the_systems_libraries_are_needed(package: Path) -> None:
    exported = ran("nm", "-D", "--defined-only", package / "lib/librelaxc_runtime.so").stdout.split()[2::3]
    header = (package / "include/relaxc/runtime.h").read_text()
    assert exported and all(f" {name}(" in header or f"*{name}(" in header for name in exported)
    needed = ran("ldd", package / "bin/relaxc-run").stdout
    assert str(package / "lib/libtvm_runtime.so") in needed.replace("/bin/../", "/")
    assert not {"python", "llvm", "libtvm_compiler"} & set(needed.lower().replace(".", " ").split())


def test_the_program_gives_pythons_numbers(package: Path, linear: Linears, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x, ids = rng.standard_normal((5, 64)).astype(np.float32), np.arange(5)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "ids.npy", ids)
    given = [f"--input={name}={tmp_path}/{name}.npy".split("=", 1) for name in ("x", "ids")]
    words = [word for pair in given for word in pair]
    done = ran(package / "bin/relaxc-run", *words, "--outputs", tmp_path, "--runs", 2, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said, want = json.loads(done.stdout), load(package / "model.so")({"x": x, "ids": ids})
    assert [row["name"] for row in said["outputs"]] == list(want)
    assert said["threads"] == machine.cpu().cores
    assert len(said["run_s"]) == 2
    for index, array in enumerate(want.values()):
        assert np.load(tmp_path / f"{index}.npy").tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [[2, 3], ["a", "b"]])
def test_sizes_that_values_decide_need_no_other_library(
    library: Library, package: Path, tmp_path: Path, shape: list[int | str]
) -> None:
    """And none of TVM's Python functions."""
    graph = model([node("NonZero", ["x"], ["y"])], [value("x", shape)], [value("y", [2, "n"], TensorProto.INT64)])
    made = relaxc.compile(write(tmp_path, graph), output=tmp_path / "model.so")
    assert all((package / "lib" / name).is_file() for name in needed_libraries(made.path, made.manifest))
    found = library.open(made.path, threads=1)({"x": np.array([[0, 2, 0], [3, 0, -1]], np.float32)})
    assert found["y"].tolist() == [[0, 1, 1], [1, 0, 2]]


def test_the_program_fills_inputs_and_explains_itself(package: Path) -> None:
    assert ran(package / "bin/relaxc-run", "--dim", "batch=3").stdout.startswith("y: float32[3, 64]")
    assert "--input NAME=FILE.npy" in ran(package / "bin/relaxc-run", "--help").stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--dim", "batch=2000"], 7, "input-shape: dim 'batch' of input 'x' is 2000, outside its bounds 1..1024"),
        (["--dim", "bacth=3"], 7, "input-name: there is no symbolic dim 'bacth'"),
        (["--input", "z=z.npy"], 7, "input-name: there is no input 'z'"),
        (["--input", "x=/dev/null"], 7, "input-type: /dev/null is no .npy file"),
        (["--runs", "-1"], 2, "invalid-option: --runs takes a number, got '-1'"),
        (["--nothing"], 2, "invalid-option: there is no option --nothing"),
        (["--device", "cuda"], 6, "machine-mismatch: this artifact was compiled for cpu, it does not run on cuda"),
        (["--sha256", "0" * 64], 6, "artifact-corrupt: "),
        (["/nowhere.so"], 6, "artifact-not-found: there is no file /nowhere.so"),
        (["/dev/zero"], 6, "artifact-corrupt: /dev/zero is no regular file"),
    ],
)
def test_the_program_refuses_by_name(package: Path, words: list[str], status: int, said: str) -> None:
    done = ran(package / "bin/relaxc-run", *words)
    assert (done.returncode, done.stderr.startswith(said)) == (status, True), done.stderr


def test_the_archive_has_the_folder_and_nothing_of_the_machine(package: Path) -> None:
    with tarfile.open(package.with_name("package.tar")) as archive:
        rows = archive.getmembers()
    assert [row.name for row in rows] == sorted(
        f"package/{p.relative_to(package)}" for p in package.rglob("*") if p.is_file()
    )
    assert {(row.mtime, row.uid, row.gid, row.uname, row.gname) for row in rows} == {(0, 0, 0, "", "")}
    assert {row.mode for row in rows} == {0o644, 0o755}


@pytest.mark.slow
def test_equal_artifacts_give_equal_bytes(package: Path, tmp_path: Path) -> None:
    made = make_package(package / "model.so", tmp_path / "package", archive=True)
    assert made.archive is not None
    assert made.archive.read_bytes() == package.with_name("package.tar").read_bytes()


@pytest.mark.slow
def test_weights_beside_the_artifact_come_along(artifact: Make, tmp_path: Path) -> None:
    path = artifact(embed_max_bytes=0)
    made = make_package(path, tmp_path / "package")
    assert {"model.so", "model.safetensors"} <= set(made.files)
    assert ran(made.folder / "bin/relaxc-run").returncode == 0
    weights = made.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "artifact-corrupt" in ran(made.folder / "bin/relaxc-run").stderr
    damaged = path.with_suffix(".safetensors")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    with pytest.raises(ArtifactCorrupt, match=r"bytes 0 to \d+ changed"):
        make_package(path, tmp_path / "again")


def test_what_cannot_be_packed_is_refused_before_anything_is_built(
    artifact: Make, package: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match="is there already"):
        make_package(package / "model.so", package)
    manifest = Manifest.read(package / "model.so")
    older = artifact(requires=replace(manifest.requires, runtime="0.1"))
    with pytest.raises(MachineMismatch, match=r"needs the runtime of TVM 0\.1"):
        make_package(older, tmp_path / "out")
    with pytest.raises(InvalidOption, match=r"there is no .*libtvm_ffi\.so"):
        make_package(older, tmp_path / "out", runtime=tmp_path)
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(older.read_bytes().replace(b"\x7fELF\x02\x01\x01\x00\x00", b"\x7fELF\x02\x01\x01\x00\x01"))
    with pytest.raises(ArtifactCorrupt):
        make_package(damaged, tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_an_artifact_for_another_architecture_needs_its_libraries(artifact: Make, tmp_path: Path) -> None:
    foreign = artifact()
    with foreign.open("r+b") as file:  # as a cross-compiled one says
        file.seek(18)
        file.write((183).to_bytes(2, "little"))
    seal(foreign, None)
    with pytest.raises(InvalidOption, match="is for x86_64, the artifact is for aarch64"):
        make_package(foreign, tmp_path / "out")


@pytest.mark.slow
def test_cmake_and_pkg_config_find_it(package: Path, cmake: str, tmp_path: Path) -> None:
    assert (
        ran(cmake, "-S", package / "example", "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={package}").returncode
        == 0
    )
    assert ran(cmake, "--build", tmp_path / "build").returncode == 0
    assert ran(tmp_path / "build/relaxc-run", package / "model.so").returncode == 0
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "relaxc-runtime"],
        env={"PKG_CONFIG_PATH": str(package / "lib/pkgconfig")},
        capture_output=True,
        text=True,
        check=True,
    )
    sources = sorted((package / "example").glob("*.cpp"))
    assert ran("g++", "-std=c++17", *sources, "-o", tmp_path / "run", *found.stdout.split()).returncode == 0
    assert ran(tmp_path / "run", package / "model.so").returncode == 0

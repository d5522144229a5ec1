"""Damaged artifacts and inputs under AddressSanitizer and valgrind: an error with a name each, never a crash."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relaxc.service.artifact.elf import read_sections
from relaxc.service.artifact.manifest import MANIFEST_SECTION, WEIGHTS_SECTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
CODES = {
    *("ok", "artifact-not-found", "artifact-corrupt", "machine-mismatch", "artifact-error"),
    *("input-name", "input-type", "input-shape", "invalid-option", "out-of-memory"),
}
SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS"]
FILES = 1500
AT_ONCE = 100


def built(package: Path, folder: Path, name: str, sources: list[Path], options: list[str]) -> Path:
    """A program over the library's own sources, all built with these options."""
    out = folder / name
    includes = [f"-I{package}/{name}" for name in ("include", "src", "third_party")]
    libraries = [f"-L{package}/lib", "-ltvm_runtime", "-ltvm_ffi", "-ldl", f"-Wl,-rpath,{package}/lib"]
    command = ["g++", "-std=c++17", "-DRELAXC_BUILDING", *options, *includes, *map(str, sources)]
    subprocess.run([*command, "-o", str(out), "-Wl,--no-as-needed", *libraries], check=True)
    return out


@pytest.fixture(scope="module")
def driver(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """drive.cc, sanitized."""
    folder = tmp_path_factory.mktemp("sanitized")
    return built(package, folder, "drive", [HERE / "drive.cc", *sorted((package / "src").glob("*.cc"))], SANITIZE)


def driven(driver: Path, paths: list[Path], *before: str) -> Counter[str]:
    """How often each status came; every file has to come to one of ours."""
    env = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    found: Counter[str] = Counter()
    for start in range(0, len(paths), AT_ONCE):
        part = [str(path) for path in paths[start : start + AT_ONCE]]
        done = subprocess.run([*before, str(driver), *part], env=env, capture_output=True, text=True, check=False)
        lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
        assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}\n{done.stderr[:6000]}"
        assert [path for path, _, _ in lines] == part
        found.update(code for _, _, code in lines)
    assert set(found) <= CODES, found
    return found


def damaged(data: bytes, where: dict[str, range], rng: random.Random) -> bytes:
    """The file with one thing wrong."""
    place = rng.choice(list(where.values()))
    at = rng.choice(place)
    match rng.randrange(7):
        case 0:
            return data[: rng.randrange(len(data))]
        case 1:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 2:
            number = rng.choice([0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, len(data), len(data) - 1])
            return data[:at] + struct.pack("<Q", number) + data[at + 8 :]
        case 3:
            size = rng.randrange(1, 200)
            return data[:at] + bytes(size) + data[at + size :]
        case 4:
            other = rng.choice(place)
            return data[:at] + data[other : other + 16] + data[at + 16 :]
        case 5:
            word = rng.choice([b'"', b"[" * 300, b"-1", b"1e99", b"9" * 30, b"null", b"\\u0000", b"{}", b"\xff\xfe"])
            return data[:at] + word + data[at + len(word) :]
        case _:
            return data[:at] + data[at + rng.randrange(1, 64) :]


def regions(path: Path) -> dict[str, range]:
    """Where a file has its header, its program headers, manifest, weights' header, and section table."""
    data, sections = path.read_bytes(), read_sections(path)
    table = struct.unpack_from("<Q", data, 0x28)[0]
    manifest, weights = sections[MANIFEST_SECTION], sections[WEIGHTS_SECTION]
    return {
        "header": range(64),
        "segments": range(64, 64 + 56 * 8),
        "code": range(64, manifest.offset),
        "manifest": range(manifest.offset, manifest.offset + manifest.size_bytes),
        "weights": range(weights.offset, weights.offset + 512),
        "sections": range(table, len(data)),
    }


@pytest.fixture
def files(package: Path, tmp_path: Path) -> Iterator[list[Path]]:
    """Damaged copies of the package's artifact, equal ones each time."""
    path, rng = package / "model.so", random.Random(12)
    data, where, made = path.read_bytes(), regions(path), []
    for number in range(FILES):
        made.append(tmp_path / f"{number}.so")
        made[-1].write_bytes(damaged(data, where, rng))
    yield made
    shutil.rmtree(tmp_path)


def manifests(package: Path, folder: Path) -> list[Path]:
    """Copies whose manifest is JSON of another sense: a value in it replaced."""
    path = package / "model.so"
    section = read_sections(path)[MANIFEST_SECTION]
    data = path.read_bytes()
    whole = json.loads(data[section.offset : section.offset + section.size_bytes])
    made = []
    for keys in list(_paths(whole)):
        for value in (None, -1, 2**63 - 1, "", "x" * 600, [], {}, [[[]]], "a\0b", 1.5, True):
            changed = json.loads(json.dumps(whole))
            inner = changed
            for key in keys[:-1]:
                inner = inner[key]
            inner[keys[-1]] = value
            text = json.dumps(changed).encode()
            made.append(folder / f"manifest{len(made)}.so")
            # The section moves to the end, and its row in the table says so.
            row = struct.pack("<QQ", section.offset, section.size_bytes)
            moved = data.replace(row, struct.pack("<QQ", len(data), len(text)))
            made[-1].write_bytes(moved + text)
    return made


def _paths(value: object, at: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in rows:
        yield (*at, key)
        yield from _paths(inner, (*at, key))


def test_a_whole_artifact_runs_clean(driver: Path, package: Path) -> None:
    assert driven(driver, [package / "model.so"] * 3) == {"ok": 3}


def test_damaged_artifacts_end_in_an_error(driver: Path, files: list[Path]) -> None:
    found = driven(driver, files)
    assert found["artifact-corrupt"] > FILES // 2, found


def test_manifests_that_say_something_else_end_in_an_error(driver: Path, package: Path, tmp_path: Path) -> None:
    found = driven(driver, manifests(package, tmp_path))
    assert found["artifact-corrupt"] > 100 < found["ok"], found


def test_valgrind_finds_nothing(package: Path, files: list[Path], tmp_path: Path) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    sources = [HERE / "drive.cc", *sorted((package / "src").glob("*.cc"))]
    driver = built(package, tmp_path, "drive", sources, ["-g", "-O1"])
    checked = ["valgrind", "-q", "--error-exitcode=99", "--errors-for-leak-kinds=definite", "--leak-check=full"]
    wrong = driven(driver, [*files[:60]], *checked)
    assert wrong["artifact-corrupt"] > 30


def test_npy_files_that_are_none_are_refused(package: Path, tmp_path: Path) -> None:
    sources = [*(package / "example").glob("*.cpp"), *sorted((package / "src").glob("*.cc"))]
    program = built(package, tmp_path, "run", sources, SANITIZE)
    np.save(tmp_path / "x.npy", np.zeros((2, 64), np.float32))
    data, rng, path = (tmp_path / "x.npy").read_bytes(), random.Random(3), tmp_path / "bad.npy"
    statuses: Counter[int] = Counter()
    for _ in range(150):
        path.write_bytes(damaged(data, {"header": range(128), "data": range(128, len(data))}, rng))
        command = [program, package / "model.so", "--threads", "1", "--dim", "batch=2", "-i", f"x={path}"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        assert done.returncode in (0, 7), done.stderr
        statuses[done.returncode] += 1
    assert statuses[7] > 50

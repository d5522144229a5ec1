"""Packing: the file's sections, the weights image, and that equal inputs give equal bytes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from elftools.elf.elffile import ELFFile

from relaxc.service.artifact import packing
from relaxc.service.artifact.elf import NewSection, append_sections
from relaxc.service.artifact.manifest import MANIFEST_SECTION, WEIGHTS_SECTION, Manifest, check_code, weights_extent
from relaxc.service.artifact.packing import LIBRARY, Built, check_made, pack, pack_parts, table_of
from relaxc.service.errors import ArtifactCorrupt, ArtifactNotFound, CompileFailed

EMBED = 1 << 30
NUMPY_DTYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64"),
)


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    """One array of every dtype, with odd sizes, a scalar, an empty one and one that is not row-major."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {name: rng.integers(0, 2, (3, 7)).astype(name) for name in NUMPY_DTYPES}
    found["bf16"] = rng.standard_normal(33).astype(ml_dtypes.bfloat16)
    found["scalar"] = np.array(2.5, np.float32)
    found["empty"] = np.zeros((0, 4), np.float32)
    found["transposed"] = rng.standard_normal((5, 9)).astype(np.float32).T
    return found


def unpack(path: Path, offset: int, size: int) -> dict[str, Any]:
    """The image read by the safetensors library."""
    image = path.read_bytes()[offset : offset + size]
    found = safetensors.deserialize(image)
    names = {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}
    dtypes = safetensors.numpy._TYPES
    return {
        name: np.frombuffer(bytes(row["data"]), names.get(row["dtype"]) or dtypes[row["dtype"]]).reshape(row["shape"])
        for name, row in found
        if not name.startswith("__pad__")
    }


def assert_same(got: dict[str, Any], want: dict[str, Any]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        np.testing.assert_array_equal(got[name], array)


def test_the_safetensors_library_reads_the_embedded_image(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any]
) -> None:
    out = tmp_path / "m.so"
    assert pack(library, weights, manifest, out, embed_max_bytes=EMBED) == [out]
    with out.open("rb") as file:
        elf = ELFFile(file)
        section = elf.get_section_by_name(WEIGHTS_SECTION)
        assert elf.get_section_by_name(MANIFEST_SECTION).data().decode() == Manifest.read(out).to_json()
    assert section["sh_offset"] % 4096 == 0
    assert section["sh_flags"] == 0  # not loaded by ld.so
    assert section["sh_size"] == Manifest.read(out).weights.size_bytes
    assert_same(unpack(out, section["sh_offset"], section["sh_size"]), weights)
    image = out.read_bytes()[section["sh_offset"] :][: section["sh_size"]]
    assert Manifest.read(out).weights == replace(table_of(weights), sha256=hashlib.sha256(image).hexdigest())


def test_every_tensor_starts_at_a_multiple_of_64_bytes(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any]
) -> None:
    out = tmp_path / "m.so"
    pack(library, weights, manifest, out, embed_max_bytes=EMBED)
    path, section = weights_extent(out, Manifest.read(out))
    image = path.read_bytes()[section.offset : section.offset + section.size_bytes]
    length = int.from_bytes(image[:8], "little")
    header = json.loads(image[8 : 8 + length])
    assert (8 + length) % 64 == 0
    assert [name for name in header if not name.startswith("__pad__")] == list(weights)
    assert all(header[name]["data_offsets"][0] % 64 == 0 for name in weights)


def test_weights_over_the_limit_go_beside_the_file_with_their_digest(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any]
) -> None:
    out = tmp_path / "m.so"
    files = pack(library, weights, manifest, out, embed_max_bytes=100)
    assert files == [out, tmp_path / "m.safetensors"]
    assert_same(unpack(files[1], 0, files[1].stat().st_size), weights)
    found = Manifest.read(out)
    assert found.weights.sha256 == hashlib.sha256(files[1].read_bytes()).hexdigest()
    assert found.weights.size_bytes == files[1].stat().st_size
    assert weights_extent(out, found)[0] == files[1]


def test_the_two_files_may_be_renamed_together_and_are_missed_apart(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any]
) -> None:
    pack(library, weights, manifest, tmp_path / "m.so", embed_max_bytes=0)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(tmp_path / "m.so", other / "resnet.so")
    with pytest.raises(ArtifactNotFound, match=r"m\.safetensors"):
        weights_extent(other / "resnet.so", Manifest.read(other / "resnet.so"))
    shutil.copy(tmp_path / "m.safetensors", other / "resnet.safetensors")
    assert weights_extent(other / "resnet.so", Manifest.read(other / "resnet.so"))[0] == other / "resnet.safetensors"
    (other / "resnet.safetensors").write_bytes(b"short")
    with pytest.raises(ArtifactCorrupt, match="5 bytes"):
        weights_extent(other / "resnet.so", Manifest.read(other / "resnet.so"))


@pytest.mark.parametrize("limit", [0, EMBED])
def test_equal_inputs_give_equal_bytes(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any], limit: int
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pack(library, dict(weights), manifest, tmp_path / name / "m.so", embed_max_bytes=limit)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


@pytest.mark.parametrize("limit", [0, EMBED])
def test_a_weight_is_let_go_before_the_next_is_written(
    tmp_path: Path, library: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    arrays = {name: np.ones(9, np.float32) for name in "abc"}
    parts, alive = [Built(library, dict(arrays), manifest)], [weakref.ref(array) for array in arrays.values()]
    seen = []

    def read(tensor: Any, bytes_of: Any = packing._bytes_of) -> memoryview:
        seen.append([each() is not None for each in alive])
        return bytes_of(tensor)

    monkeypatch.setattr(packing, "_bytes_of", read)
    arrays.clear()
    pack_parts(parts, tmp_path / "m.so", embed_max_bytes=limit)
    assert seen == [[True, True, True], [False, True, True], [False, False, True]]


def test_the_code_still_runs_and_tools_still_read_the_file(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any]
) -> None:
    out = tmp_path / "m.so"
    pack(library, weights, manifest, out, embed_max_bytes=EMBED)
    assert ctypes.CDLL(str(out)).answer() == 42
    listed = subprocess.run(["readelf", "-SW", out], capture_output=True, text=True, check=True)
    assert MANIFEST_SECTION in listed.stdout
    assert not listed.stderr
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, out], check=True)
    assert Manifest.read(stripped) == Manifest.read(out)
    path, section = weights_extent(stripped, Manifest.read(stripped))
    assert section.offset % 64 == 0
    assert_same(unpack(path, section.offset, section.size_bytes), weights)


def test_every_byte_that_the_loader_maps_is_covered_by_a_digest(
    tmp_path: Path, library: Path, manifest: Manifest, weights: dict[str, Any]
) -> None:
    out, stripped = tmp_path / "m.so", tmp_path / "stripped.so"
    pack(library, weights, manifest, out, embed_max_bytes=EMBED)
    subprocess.run(["strip", "-o", stripped, out], check=True)
    for path in (out, stripped):
        check_code(path, Manifest.read(path), 0)
    packed, data = Manifest.read(out), out.read_bytes()
    with out.open("rb") as file:
        segments = [row.header for row in ELFFile(file).iter_segments("PT_LOAD")]
    mapped = [place for row in segments for place in range(row.p_offset, row.p_offset + row.p_filesz)]
    section_table = {*range(0x28, 0x30), *range(0x3C, 0x40)}
    for place in sorted({*mapped[:128], *mapped[128::97]} - section_table):
        out.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        with pytest.raises(ArtifactCorrupt):
            check_code(out, packed, 0)


def test_files_of_before_that_say_no_digest_are_taken(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    check_code(library, manifest, 0)


def test_tvm_tensors_are_taken_without_a_copy(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    import tvm

    arrays = {"a": np.arange(12, dtype=np.float32), "b": np.arange(3).astype(ml_dtypes.bfloat16), "c": np.array([True])}
    out = tmp_path / "m.so"
    pack(library, {n: tvm.runtime.tensor(a) for n, a in arrays.items()}, manifest, out, embed_max_bytes=EMBED)
    path, section = weights_extent(out, Manifest.read(out))
    assert_same(unpack(path, section.offset, section.size_bytes), arrays)


def test_a_library_that_is_packed_already_and_one_that_is_none_are_refused(
    tmp_path: Path, library: Path, manifest: Manifest
) -> None:
    out = tmp_path / "m.so"
    pack(library, {}, manifest, out, embed_max_bytes=EMBED)
    with pytest.raises(ArtifactCorrupt, match="already"):
        pack(out, {}, manifest, tmp_path / "n.so", embed_max_bytes=EMBED)
    with pytest.raises(ArtifactCorrupt):
        append_sections(Path(__file__), tmp_path / "n.so", [NewSection(".x", 1, lambda file: None)])


def test_names_that_the_image_needs_for_itself_are_refused(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    with pytest.raises(CompileFailed, match="reserved"):
        pack(library, {"__metadata__": np.zeros(1)}, manifest, tmp_path / "m.so", embed_max_bytes=EMBED)


@pytest.mark.parametrize("most", [0, EMBED])
def test_all_files_of_an_artifact_are_what_its_library_says(
    tmp_path: Path, library: Path, manifest: Manifest, most: int
) -> None:
    model = manifest.digests["model"]
    files = pack(library, {"w": np.zeros(4, np.float32)}, manifest, tmp_path / LIBRARY, embed_max_bytes=most)
    check_made(files, model)
    for wrong in ([], files[1:], [*files, tmp_path / "more"], [files[0], *files]):
        with pytest.raises(CompileFailed):
            check_made(wrong, model)
    with pytest.raises(CompileFailed, match="of another model"):
        check_made(files, "d" * 64)
    other = tmp_path / "entry.json"
    shutil.copy(files[0], other)
    with pytest.raises(CompileFailed, match=LIBRARY):
        check_made([other, *files[1:]], model)


def test_weights_beside_a_library_are_those_that_it_names(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    model = manifest.digests["model"]
    files = pack(library, {"w": np.zeros(4, np.float32)}, manifest, tmp_path / LIBRARY, embed_max_bytes=0)
    with pytest.raises(CompileFailed, match="other files"):
        check_made(files[:1], model)
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"!")
    with pytest.raises(CompileFailed, match="other weights"):
        check_made(files, model)


def test_what_is_no_artifact_is_told_without_its_place(tmp_path: Path, library: Path) -> None:
    for content in (b"", b"no library", library.read_bytes()):
        (tmp_path / LIBRARY).write_bytes(content)
        with pytest.raises(CompileFailed) as refused:
            check_made([tmp_path / LIBRARY], "a" * 64)
        assert str(tmp_path) not in str(refused.value.to_dict())

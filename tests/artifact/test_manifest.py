"""The manifest: round trips, and that nothing hostile gets past `from_json` and `read`."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relaxc.service.artifact.elf import loaded_digest, read_sections
from relaxc.service.artifact.manifest import MANIFEST_SECTION, Manifest, Requires, weights_extent
from relaxc.service.artifact.packing import pack
from relaxc.service.errors import ArtifactCorrupt, ArtifactNotFound
from relaxc.service.request import TargetSpec
from relaxc.service.signature import Signature


def test_a_manifest_survives_json(manifest: Manifest) -> None:
    again = Manifest.from_json(manifest.to_json())
    assert again == manifest
    assert again.to_json() == manifest.to_json()


def test_equal_manifests_give_equal_bytes_whatever_the_order_of_their_parts(manifest: Manifest) -> None:
    data = json.loads(manifest.to_json())
    data["signature"]["dims"] = dict(reversed(data["signature"]["dims"].items()))
    shuffled = dict(reversed(data.items()))
    assert Manifest.from_json(json.dumps(shuffled)).to_json() == manifest.to_json()


def test_the_verification_is_a_report_or_a_reason(manifest: Manifest) -> None:
    assert manifest.verified is True
    reasoned = manifest.with_verification("there is no CUDA device here")
    assert reasoned.verification == "not verified: there is no CUDA device here"
    assert reasoned.verified is None
    assert Manifest.from_json(reasoned.to_json()) == reasoned


def test_requires_names_the_capability_of_a_cuda_target_and_the_features_of_its_host() -> None:
    host = TargetSpec("h", "llvm", features=("fma", "avx2"))
    found = Requires.of(TargetSpec("c", "cuda", arch="sm_90a", host=host), "0.27")
    assert found == Requires("x86_64", ("avx2", "fma"), "9.0", "0.27")


DAMAGED = [
    ("", "x"),
    ("format", 2),
    ("format", "1"),
    ("format", True),
    ("signature", None),
    ("signature.inputs", {}),
    ("signature.inputs.0.shape", [True]),
    ("signature.inputs.0.shape", [-1]),
    ("signature.inputs.0.shape", [1.5]),
    ("signature.inputs.0.dtype", "complex64"),
    ("signature.inputs.0.name", ""),
    ("signature.inputs.1.name", "x"),
    ("signature.dims.batch", [4, 1]),
    ("signature.dims.batch", [1]),
    ("signature.dims.batch", [True, None]),
    ("signature.constants", {"a": []}),
    ("signature.conditions", [["n >= 1"]]),
    ("signature.conditions", {}),
    ("target.kind", "vulkan"),
    ("target.host", None),
    ("target.cores", 0),
    ("target.features", [1]),
    ("requires.compute_capability", 9.0),
    ("requires.features", "avx2"),
    ("digests", {"model": 1}),
    ("schedule", [1]),
    ("schedule", {}),
    ("verification", {}),
    ("verification", {"passed": "yes"}),
    ("verification", None),
    ("weights.tensors", [["w", "float32"]]),
    ("weights.tensors", [["w", "float32", ["n"]]]),
    ("weights.tensors", [["w", "float32", [1]], ["w", "float32", [1]]]),
    ("weights.file", "../../etc/passwd.safetensors"),
    ("weights.file", "model.so"),
    ("weights.file", "model.safetensors"),
    ("surprise", 1),
]


@pytest.mark.parametrize(("path", "value"), DAMAGED, ids=str)
def test_a_field_that_is_wrong_is_refused(manifest: Manifest, path: str, value: Any) -> None:
    data = json.loads(manifest.to_json())
    *parents, last = path.split(".")
    place = data
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    place[last] = value
    with pytest.raises(ArtifactCorrupt):
        Manifest.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"format": 1e999}', "NaN", "[" * 100_000, b"\xff\xfe\x00"])
def test_text_that_is_no_manifest_is_refused(text: str | bytes) -> None:
    with pytest.raises(ArtifactCorrupt):
        Manifest.from_json(text)


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [prefix, *(path for key, inner in items for path in _paths(inner, (*prefix, key)))]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_gives_a_manifest_or_artifact_corrupt(manifest: Manifest, data: st.DataObject) -> None:
    value = copy.deepcopy(json.loads(manifest.to_json()))
    *parents, last = data.draw(st.sampled_from(_paths(value)[1:]))
    place = value
    for name in parents:
        place = place[name]
    place[last] = data.draw(ANYTHING)
    with suppress(ArtifactCorrupt):
        Manifest.from_json(json.dumps(value))


def test_read_takes_the_manifest_out_of_the_file(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    out = tmp_path / "m.so"
    pack(library, {}, manifest, out, embed_max_bytes=1 << 30)
    found = Manifest.read(out)
    digests = {"code": loaded_digest(library), "weights": found.weights.sha256}
    assert found.digests == {**manifest.digests, **digests}
    assert replace(found, weights=manifest.weights, digests=manifest.digests) == manifest


def test_reading_needs_neither_tvm_nor_numpy(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    out = tmp_path / "m.so"
    pack(library, {}, manifest, out, embed_max_bytes=1 << 30)
    code = f"""
import sys
from relaxc.service.artifact.manifest import Manifest
Manifest.read({str(out)!r})
sys.exit(bool({{"tvm", "numpy", "torch", "onnx"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_library_of_somebody_else_is_refused_by_name(library: Path) -> None:
    with pytest.raises(ArtifactCorrupt, match="not compiled by relaxc"):
        Manifest.read(library)


def test_missing_files_folders_and_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFound):
        Manifest.read(tmp_path / "none.so")
    with pytest.raises(ArtifactCorrupt):
        Manifest.read(tmp_path)
    for name, content in (("empty", b""), ("text", b"hello" * 100), ("short", b"\x7fELF\x02\x01\x01")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArtifactCorrupt):
            Manifest.read(tmp_path / name)
        with pytest.raises(ArtifactNotFound):
            Manifest.read(tmp_path / name / "below-a-file")


def test_every_truncation_is_refused(tmp_path: Path, library: Path, manifest: Manifest) -> None:
    out, cut = tmp_path / "m.so", tmp_path / "cut.so"
    pack(library, {}, manifest, out, embed_max_bytes=1 << 30)
    whole = out.read_bytes()
    for size in {*range(0, len(whole), 251), *range(len(whole) - 200, len(whole))}:
        cut.write_bytes(whole[:size])
        with pytest.raises(ArtifactCorrupt):
            Manifest.read(cut)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, library: Path) -> bytes:
    """The bytes of an artifact."""
    out = tmp_path_factory.mktemp("packed") / "m.so"
    target = TargetSpec("t", "llvm")
    manifest = Manifest(Signature((), ()), target, Requires.of(target, "0.27"), {}, {}, {}, "relaxc")
    pack(library, {}, manifest, out, embed_max_bytes=1 << 30)
    return out.read_bytes()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_give_a_manifest_or_an_artifact_error(tmp_path: Path, packed: bytes, data: st.DataObject) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(packed)
    section = read_sections(damaged)[MANIFEST_SECTION]
    tables = int.from_bytes(packed[40:48], "little")
    places = st.one_of(
        st.integers(0, 63),  # the ELF header
        st.integers(section.offset, section.offset + section.size_bytes - 1),
        st.integers(tables, len(packed) - 1),  # the section table
    )
    changed = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(places)] = data.draw(st.integers(0, 255))
    damaged.write_bytes(changed)
    with suppress(ArtifactCorrupt, ArtifactNotFound):
        weights_extent(damaged, Manifest.read(damaged))

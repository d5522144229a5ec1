"""What a manifest says of several parts: read back, and refused where it cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from relaxc.service.artifact.manifest import Manifest
from relaxc.service.artifact.parts import Part
from relaxc.service.artifact.weights_table import WeightsTable
from relaxc.service.errors import ArtifactCorrupt
from relaxc.service.request import TargetSpec
from relaxc.service.signature import TensorSpec


@pytest.fixture
def whole(manifest: Manifest) -> Manifest:
    """A manifest of two parts, which share a weight."""
    tensors = tuple(TensorSpec(name, "float16", (4,)) for name in ("w0", "w1", "part1.w0"))
    newer = replace(manifest.target, name="cuda-sm120", arch="sm_120")
    part = Part(".relaxc.part.1", (2, 1), newer, "d" * 64, [{"rule": "other"}], {"fusions": {}}, "not verified: no GPU")
    return replace(manifest, weights=WeightsTable(tensors, size_bytes=64), own_weights=2, others=(part,))


def test_it_survives_json_and_one_part_has_no_trace_of_it(manifest: Manifest, whole: Manifest) -> None:
    assert Manifest.from_json(whole.to_json()) == whole
    assert {"own_weights", "others"} & manifest.to_dict().keys() == set()
    assert manifest.parts == (manifest,)


def test_each_part_is_a_manifest_of_its_own(manifest: Manifest, whole: Manifest) -> None:
    first, second = whole.parts
    assert [tensor.name for tensor in first.weights.tensors] == ["w0", "w1"]
    assert [tensor.name for tensor in second.weights.tensors] == ["part1.w0", "w1"]
    assert first == replace(manifest, weights=first.weights)
    assert second.target.name == "cuda-sm120" and second.requires.compute_capability == "12.0"
    assert second.digests == {**manifest.digests, "tuning": "d" * 64} and second.verified is None
    assert second.schedule == [{"rule": "other"}] and not second.others
    assert whole.target_names == "cuda-sm90,cuda-sm120"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"own_weights": 4}, "which weights"),
        ({"own_weights": -1}, "which weights"),
        ({"others": []}, "which weights"),
        ({"others": [{}]}, "no field 'section'"),
        ({"weights": [3]}, "weights that are not there"),
        ({"weights": [True]}, "list of integers"),
        ({"verification": {}}, "whether it passed"),
        ({"more": 1}, "unknown fields more"),
    ],
)
def test_a_field_that_is_wrong_is_refused(whole: Manifest, change: dict[str, Any], said: str) -> None:
    data = whole.to_dict()
    of_part = {name for name in change if name in ("weights", "verification", "more")}
    (data["others"][0] if of_part else data).update(change)
    with pytest.raises(ArtifactCorrupt, match=said):
        Manifest.from_json(json.dumps(data))


def test_targets_of_parts_are_cuda_devices_with_one_host() -> None:
    from relaxc.service.errors import InvalidTarget

    host = TargetSpec("x86-64-v3", "llvm")
    part = TargetSpec("cuda-sm80", "cuda", triple="", arch="sm_80", host=host)
    for parts in ((part,), (part, host), (part, replace(part, host=replace(host, cores=3)))):
        with pytest.raises(InvalidTarget, match="with one host"):
            TargetSpec("both", "cuda", triple="", host=host, parts=parts)

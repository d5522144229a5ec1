"""What a node offers, by the names that tasks ask for."""

from __future__ import annotations

from dataclasses import replace

from relaxc.service.jobs.ray.resources import KIND, Kind, builds, kind_of, resources_of
from relaxc.service.lowering.target import resolve
from tests.jobs.workers.kinds import ARM, HASWELL, HOPPER, ZEN


def test_a_node_offers_its_kind_what_it_runs_and_what_it_builds() -> None:
    found = resources_of(HOPPER)
    assert found[kind_of(HOPPER)] == 1.0
    assert {"x86_64", "x86_64_v3", "cuda_sm90"} <= found.keys()
    assert "x86_64_v4" not in found
    assert found["candidates"] == HOPPER.cores
    assert found["candidates_cuda"] == HOPPER.cores
    assert {"znver4", "x86_64_v4"} <= resources_of(ZEN).keys()
    assert "x86_64_v2" not in resources_of(ARM)
    assert "candidates_cuda" not in resources_of(HASWELL)


def test_only_machines_that_are_alike_are_of_one_kind() -> None:
    kinds = {kind_of(each) for each in (ZEN, HASWELL, HOPPER, ARM, replace(ZEN, cores=4))}
    assert len(kinds) == 5
    assert all(kind.startswith(KIND) for kind in kinds)
    assert kind_of(replace(ZEN, title="Another", memory_bytes=1)) == kind_of(ZEN)
    assert kind_of(replace(ZEN, versions={"relaxc": "0"})) != kind_of(ZEN)


def test_jobs_share_a_node_and_a_tuning_has_it_alone() -> None:
    kind = Kind("relaxc_x", ZEN, 2)
    assert kind.share(1) == {"relaxc_x": 1.0}
    assert kind.share(3) == {"relaxc_x": 0.3333}
    assert kind.share(10**9) == {"relaxc_x": 0.0001}


def test_candidates_for_gpus_need_their_compiler() -> None:
    assert (builds(resolve("cuda-sm90")), builds(resolve("x86-64-v3"))) == ("candidates_cuda", "candidates")

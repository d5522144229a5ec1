"""What is read from a machine's files, and what `auto` makes of it: family, cores, caches, vectors and instructions."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from relaxc.schedules.hardware import cpu_of
from relaxc.service import machine, processor
from relaxc.service.artifact import decode
from relaxc.service.errors import ArtifactCorrupt, InvalidTarget
from relaxc.service.lowering import target
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.records.record import RecordTarget
from relaxc.service.request import TargetSpec
from tests.machines import KIB, MACHINES, MIB, UNKNOWN, Machine

MEMORY = "/dev/shm"


@functools.cache
def read(described: Machine) -> processor.Cpu:
    """What is read from its files. A large machine has some thousands, and a disk may take a millisecond for each."""
    fits = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 256 * MIB
    with tempfile.TemporaryDirectory(dir=MEMORY if fits else None) as folder:
        return described.read(Path(folder))


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch):
    """Gives what `auto` means on a machine."""

    def on(described: Machine) -> TargetSpec:
        cpu = read(described)
        monkeypatch.setattr(machine, "cpu", lambda: cpu)
        target._warn_of_unknown.cache_clear()
        return resolve("auto")

    return on


@pytest.mark.parametrize("described", MACHINES.values(), ids=MACHINES)
def test_auto_on_a_machine(described, auto, caplog):
    spec = auto(described)
    row = cpu_of(to_tvm(spec))
    assert (spec.name, spec.cores, spec.vector_bits) == (described.family, described.cores, described.vector_bits)
    assert (row.name, row.cores, row.vector_bits) == (described.family, described.cores, described.vector_bits)
    assert (row.l1_bytes, row.l2_bytes, row.l3_bytes) == described.caches
    assert row.dot("float32").rate == described.rate and row.dot("float32").intrinsic == "llvm.fma"
    assert RecordTarget.of(spec).mcpu == described.family
    assert not caplog.records


@pytest.mark.parametrize("described", UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_machine_is_named_and_sized_from_its_caches(described, auto, caplog):
    with caplog.at_level(logging.WARNING):
        spec = auto(described)
        resolve("auto")
    [warning] = [record.getMessage() for record in caplog.records]  # once a process
    assert (described.title or "0xd84") in warning and described.family in warning and "KiB" in warning
    assert (spec.name, spec.cores, spec.caches) == (described.family, described.cores, described.caches)
    row = cpu_of(to_tvm(spec))
    assert (row.l1_bytes, row.l2_bytes, row.l3_bytes) == described.caches
    assert (row.vector_bits, row.dot("float32").rate) == (described.vector_bits, described.rate)


@pytest.mark.parametrize("described", {**MACHINES, **UNKNOWN}.values(), ids={**MACHINES, **UNKNOWN})
def test_the_target_makes_the_same_row_elsewhere(described, auto, monkeypatch):
    """What `auto` was resolved to travels as JSON: by an API, in a manifest, in a bug report."""
    spec = auto(described)
    row = cpu_of(to_tvm(spec))
    monkeypatch.setattr(machine, "cpu", lambda: processor.Cpu("riscv64", "", frozenset(), 1))
    there = resolve(json.dumps(spec.to_dict()))
    assert there == spec and cpu_of(to_tvm(there)) == row


def test_every_family_has_a_row_with_its_vectors():
    from relaxc.schedules.hardware import CPUS

    assert {name for _, name, _ in processor.FAMILIES} <= CPUS.keys()
    modelled = {name for models in processor._MODELS.values() for name, _ in models}
    # Cascade Lake has Skylake's model, and VNNI.
    assert modelled | {"cascadelake"} == {name for _, name, _ in processor.FAMILIES}
    for _, name, needs in processor.FAMILIES:
        wide = {"avx512f", "avx512fp16", "avx512vnni"} & needs
        assert CPUS[name].vector_bits == (512 if wide else 256 if "avx2" in needs else 128), name


def test_only_allowed_cores_count(tmp_path):
    """Two hardware threads of one core are one; the small cores of a hybrid may be all there is."""
    hybrid = MACHINES["Alder Lake: Core i9-12900K"]
    hybrid.write(tmp_path)
    for allowed, cores, l2 in (
        ([0, 16], 1, 1280 * KIB),
        ([0, 16, 1], 2, 1280 * KIB),
        ([16, 17], 2, 1280 * KIB),
        ([8, 9, 10], 3, 512 * KIB),
        ([0, *range(8, 16)], 9, 1280 * KIB),  # nine halves are more than one whole
    ):
        found = processor.read(tmp_path, "x86_64", allowed)
        assert (found.cores, found.caches[1]) == (cores, l2), allowed


def test_the_model_of_the_fastest_core_counts(tmp_path):
    assert MACHINES["Apple M1"].read(tmp_path).model == (0, 0x23)
    assert processor.read(tmp_path, "aarch64", [0, 1]).model == (0, 0x22)


def test_a_machine_that_tells_nothing_but_its_name(tmp_path):
    """As in a container without /sys: the row's caches, and a core for each CPU."""
    described = MACHINES["Zen 4: EPYC 9654"]
    described = replace(described, clusters=(replace(described.clusters[0], cores=4, l3_cores=4),))
    described.write(tmp_path)
    (tmp_path / "sys").rename(tmp_path / "hidden")
    found = processor.read(tmp_path, "x86_64", range(4))
    assert (found.cores, found.caches, processor.microarchitecture(found)) == (4, (), ("znver4", True))
    (tmp_path / "proc/cpuinfo").write_text("")
    found = processor.read(tmp_path, "x86_64", [0])
    assert (found.cores, processor.microarchitecture(found)) == (1, ("", False))


def test_features_that_a_hypervisor_hides_hide_the_family_too():
    zen4 = processor.Cpu("x86_64", "AuthenticAMD", frozenset({"avx2", "vaes"}), 2, (25, 17))
    assert processor.microarchitecture(zen4) == ("znver3", True)
    skylake = processor.Cpu("x86_64", "GenuineIntel", frozenset({"avx2"}), 2, (6, 85))
    assert processor.microarchitecture(skylake) == ("haswell", True)


def test_half_vectors_have_their_own_rates():
    """Zen 4 starts two 256-bit multiply-adds a cycle, and one of 512."""
    for mcpu, wide, narrow in (("znver4", (1, 1), (2, 2)), ("x86-64-v4", (2, 2), (2, 2))):
        for bits, rates in ((512, wide), (256, narrow)):
            row = cpu_of(to_tvm(resolve(json.dumps({"kind": "llvm", "mcpu": mcpu, "vector_bits": bits}))))
            assert (row.vector_bits, (row.fma_per_cycle, row.loads_per_cycle)) == (bits, rates)
            assert row.dot("float32").throughput == rates[0] and row.vector_registers == 32


def test_a_target_for_an_mcpu_without_a_row_has_the_level_of_its_features():
    from tvm.target import Target

    for mcpu, name in (("znver4", "znver4"), ("tigerlake", "x86-64-v4"), ("core-avx-i", "x86-64-v2")):
        assert cpu_of(Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})).name == name


def test_caches_are_part_of_a_target_only_where_they_were_read():
    named = resolve("x86-64-v3")
    assert "caches" not in named.to_dict() and "model" not in to_tvm(named).attrs
    own = replace(named, caches=(32 * KIB, 2 * MIB, 8 * MIB))
    assert TargetSpec.from_dict(own.to_dict()) == own and RecordTarget.of(own) == RecordTarget.of(named)
    assert decode.target(own.to_dict()) == own and decode.target(named.to_dict()) == named
    for wrong in ([1, 2], ["1", 2, 3], [3 * MIB, 2 * MIB, MIB]):
        with pytest.raises(ArtifactCorrupt, match="caches"):
            decode.target({**own.to_dict(), "caches": wrong})
        with pytest.raises(InvalidTarget, match="caches"):
            resolve(json.dumps({"kind": "llvm", "caches": wrong}))
    assert cpu_of(to_tvm(own)).l2_bytes == 2 * MIB and cpu_of(to_tvm(named)).l2_bytes == 256 * KIB

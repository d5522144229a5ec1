"""The machine's peak: measured once, kept by CPU, cores and threads, and what it bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm

from relaxc.service import config, machine
from relaxc.service.lowering.target import resolve
from relaxc.service.runtime import peak as peak_module
from relaxc.service.runtime import probes
from relaxc.service.runtime.peak import Level, Peak, instructions, measure, peak
from relaxc.service.runtime.roofline import Far, limit_of
from tests.schedules.numpy_tir import numpy_dtype

PEAK = Peak(
    "here",
    2,
    100.0,
    (Level("L1", 1 << 10, 400.0, 200.0), Level("L2", 1 << 20, 100.0, 50.0), Level("memory", None, 10.0, 8.0)),
)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, and probes that only count: they find 1, 2, 3, ... GFLOP/s."""
    found = iter(range(1, 100))
    name = peak_module._name()

    def count(threads: int, _: object, by: tuple[str, ...]) -> Peak:
        return Peak(name, threads, float(next(found)), PEAK.levels, instructions=by)

    monkeypatch.setattr(peak_module, "settings", lambda: config.Settings(cache_dir=tmp_path))
    monkeypatch.setattr(peak_module, "measure", count)
    return tmp_path / "peak"


def test_a_peak_is_measured_once_for_each_number_of_threads(kept: Path) -> None:
    assert [peak(1).gflops, peak(1).gflops, peak(2).gflops, peak(1).gflops] == [1, 1, 2, 1]
    assert len(list(kept.iterdir())) == 2
    assert peak(1, again=True).gflops == 3
    assert peak(1).gflops == 3


def test_a_peak_is_that_of_the_instructions_of_a_target(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = ("avx512f", "avx2", "fma", "avx512bf16")
    monkeypatch.setattr(machine, "host_features", lambda: frozenset({*every, "sse4.2"}))
    narrow = replace(resolve("x86-64-v4"), vector_bits=256)
    found = {name: instructions(resolve(name)) for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4")}
    assert found == {"x86-64-v2": (), "x86-64-v3": every[1:3], "x86-64-v4": every[:3], "znver4": every}
    assert instructions(narrow) == every[1:3] and instructions() == every
    v3 = resolve("x86-64-v3")
    assert [peak(1).gflops, peak(1, target=v3).gflops, peak(1, target=narrow).gflops, peak(1).gflops] == [1, 2, 2, 1]
    assert peak(1, target=resolve("x86-64-v2")).gflops == 3 and peak(1, target=resolve("znver4")).gflops == 1
    monkeypatch.setattr(machine, "host_features", lambda: frozenset({"avx2", "fma"}))
    assert instructions(resolve("znver4")) == ("avx2", "fma")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"version": 1, "machine": "x", "threads": 1, "gflops": 2.0, "gbps": 3.0}',
        '{"version": 3, "peak": {"machine": "x", "threads": 1, "gflops": 1.0, "levels": [], "alone": true}}',
    ],
)
def test_a_file_that_is_no_peak_is_measured_again(kept: Path, text: str) -> None:
    assert peak(1).gflops == 1
    (file,) = kept.iterdir()
    file.write_text(text)
    assert peak(1).gflops == 2


def test_the_peak_of_another_cpu_is_not_taken(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak(1).gflops == 1
    (file,) = kept.iterdir()
    data = json.loads(file.read_text())
    data["peak"]["machine"] = "another"
    file.write_text(json.dumps(data))
    assert peak(1).gflops == 2
    monkeypatch.setattr(peak_module, "_name", lambda: "a new one")
    assert peak(1).gflops == 3
    assert len(list(kept.iterdir())) == 2


def test_what_was_measured_on_a_busy_machine_is_measured_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(5.0, False), (4.0, False), (6.0, False), (3.0, True), (9.0, True)])
    name = peak_module._name()
    monkeypatch.setattr(peak_module, "measure", lambda t, _, by: Peak(name, t, (n := next(found))[0], (), n[1], {}, by))
    read = staticmethod(lambda data: Peak(**{**data, "instructions": tuple(data["instructions"])}))
    monkeypatch.setattr(Peak, "from_dict", read)
    assert [peak(1).gflops for _ in range(6)] == [5, 5, 6, 3, 3, 3]


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(peak_module, "settings", lambda: config.Settings(cache_dir=tmp_path / "file"))
    monkeypatch.setattr(peak_module, "measure", lambda *_: PEAK)
    assert peak(1) == PEAK


@pytest.mark.slow
def test_what_is_measured_makes_sense() -> None:
    told: list[tuple[int, int]] = []
    one, two = measure(1, lambda done, total: told.append((done, total))), measure(2)
    assert [done for done, _ in told] == list(range(told[0][1] + 1)) and len({total for _, total in told}) == 1
    for found in (one, two):
        assert found.gflops > 1
        assert set(found.products) == set(probes.fastest(machine.host_features()))
        assert all(rate > 1 for rate in found.products.values())
        assert found.levels[0].name == "L1"
        assert found.memory.name == "memory"
        sizes = [level.size_bytes for level in found.levels[:-1]]
        assert sizes == sorted(sizes)
        for rates in ([level.read_gbps for level in found.levels], [level.copy_gbps for level in found.levels]):
            assert rates == sorted(rates, reverse=True)
            assert rates[-1] > 0.1
        assert Peak.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert (one.threads, two.threads) == (1, 2)


@pytest.mark.slow
def test_half_the_vector_does_half_the_work() -> None:
    every = instructions()
    if "avx512f" not in every:
        pytest.skip("needs avx512f")
    by = [measure(1, by=each) for each in (every, ("avx2", "fma"), ())]
    assert [found.instructions for found in by] == [every, ("avx2", "fma"), ()]
    assert by[0].gflops > 1.4 * by[1].gflops > 2 * by[2].gflops > 2


def test_the_probes_compute_what_they_say() -> None:
    lanes, row = 4, probes.CHAINS * 4
    functions = {
        "fma": probes.fma(2, lanes, 3),
        "read": probes.read(2, lanes, 5, 2),
        "copy": probes.copy(2, lanes, 5, 2),
    }
    library = probes.build(functions, tvm.target.Target({"kind": "llvm"}))
    tensor = tvm.runtime.tensor
    sums = tensor(np.ones(2 * row, np.float32))
    library["fma"](tensor(np.full(lanes, 2, np.float32)), sums)
    np.testing.assert_array_equal(sums.numpy(), np.full(2 * row, 22, np.float32))  # 1, 4, 10, 22
    data = np.random.default_rng(0).integers(0, 9, 2 * 5 * row).astype(np.float32)
    read, copied = tensor(np.zeros(2 * row, np.float32)), tensor(np.zeros(data.size, np.float32))
    library["read"](tensor(data), read)
    np.testing.assert_array_equal(read.numpy(), 2 * data.reshape(2, 5, row).sum(1).ravel())
    library["copy"](tensor(data), copied)
    np.testing.assert_array_equal(copied.numpy(), -data)


@pytest.mark.parametrize(
    ("dtype", "feature"),
    [("bfloat16", "amx-bf16"), ("bfloat16", "avx512bf16"), ("uint8", "amx-int8"), ("uint8", "avx512vnni")],
)
def test_the_probe_of_an_instruction_computes_what_it_says(dtype: str, feature: str) -> None:
    of_vector, target = peak_module.vectors()
    if not {feature, "avx512f"} <= machine.host_features():
        pytest.skip(f"this CPU has no {feature.replace('-', '_')}, or the kernel refuses it")
    by = probes.fastest({feature, "avx512f"})[dtype]
    lanes = by.lanes(of_vector)
    library = probes.build({"products": probes.products(2, lanes, 3, by)}, target)
    twos = np.full(lanes * 4 // np.dtype(numpy_dtype(dtype)).itemsize, 2, numpy_dtype(dtype)).view(np.int32)
    sums = tvm.runtime.tensor(np.ones(2 * by.chains * lanes, by.sums))
    library["products"](tvm.runtime.tensor(twos), sums)
    np.testing.assert_array_equal(sums.numpy(), np.full(sums.shape, 1 + 3 * 4 * by.k, by.sums))


def test_narrow_operands_are_multiplied_by_the_fastest_instruction() -> None:
    every = {"avx512f", "avx512bf16", "avx512vnni", "amx-tile", "amx-bf16", "amx-int8"}
    chosen = {name: by.feature for name, by in probes.fastest(every).items()}
    assert chosen == {"bfloat16": "amx-bf16", "uint8": "amx-int8"}
    assert list(probes.fastest({"avx512f", "avx512vnni"})) == ["uint8"]
    assert probes.fastest({"avxvnni", "amx-bf16"}) == {}


def test_the_limit_is_the_slower_of_arithmetic_and_bytes() -> None:
    assert limit_of(PEAK, 1e8, 1000) == (limit := limit_of(PEAK, 1e8, 1 << 19))
    assert (limit.ms, limit.bound) == (pytest.approx(1.0), "compute")
    assert limit_of(PEAK, 0, 0).ms == 0
    whole = PEAK.levels[-2].size_bytes
    assert whole is not None
    hot, away = limit_of(PEAK, 1, 1000), limit_of(PEAK, 1, 1000, 0, Far(900, 2 * whole))
    assert (away.bound, away.ms > hot.ms) == (PEAK.memory.name, True)
    assert limit_of(PEAK, 1, 1000, 0, Far(900, 1000)) == hot


@pytest.mark.parametrize(
    ("size_bytes", "written", "level", "ms"),
    [
        (1000, 0, "L1", 1000 / 400e6),
        (1024, 512, "L1", 1024 / 200e6),  # as much read as written: what the copy reached
        (100_000, 0, "L2", 100_000 / 100e6),
        (100_000_000, 0, "memory", 10.0),
        (100_000_000, 100_000_000, "memory", 15.0),  # 2 / 8 - 1 / 10 a written byte
    ],
)
def test_bytes_come_from_the_level_that_holds_them(size_bytes: int, written: int, level: str, ms: float) -> None:
    limit = limit_of(PEAK, 1, size_bytes, written)
    assert limit.bound == level
    assert limit.ms == pytest.approx(ms)


def _cache(folder: Path, kind: str, level: int, size: str, cpus: str) -> None:
    index = folder / f"index{len(list(folder.glob('*')))}"
    index.mkdir()
    for name, text in (("type", kind), ("level", str(level)), ("size", size), ("shared_cpu_list", cpus)):
        (index / name).write_text(f"{text}\n")


def test_caches_are_read_as_linux_tells_them(tmp_path: Path) -> None:
    _cache(tmp_path, "Data", 1, "48K", "0")
    _cache(tmp_path, "Instruction", 1, "64K", "0")
    _cache(tmp_path, "Unified", 2, "2048K", "0,4")
    _cache(tmp_path, "Unified", 3, "32M", "0-3,8-11")
    (tmp_path / "index9").mkdir()
    assert machine.caches(tmp_path) == [
        machine.Cache(1, 48 << 10, 1),
        machine.Cache(2, 2 << 20, 2),
        machine.Cache(3, 32 << 20, 8),
    ]
    assert machine.caches(tmp_path / "nowhere") == []


def test_a_machine_that_tells_nothing_of_its_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "caches", list)
    names = [name for name, _, _ in peak_module._sizes(2)]
    assert names == ["L1", "L2", "memory"]
    small = [machine.Cache(1, 32 << 10, 1), machine.Cache(2, 1 << 20, 1), machine.Cache(3, 2 << 20, 8)]
    monkeypatch.setattr(machine, "caches", lambda: small)
    assert [name for name, _, _ in peak_module._sizes(2)] == ["L1", "L2", "memory"]  # L3 is no larger than all L2
    assert [name for name, _, _ in peak_module._sizes(1)] == ["L1", "L2", "memory"]

"""Which records a compile uses: given ones first, then shipped ones, and only those for its target."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service import config
from relaxc.service.errors import InvalidRecords
from relaxc.service.lowering.target import resolve
from relaxc.service.records import sources
from relaxc.service.records.files import append
from relaxc.service.records.record import RecordTarget, Workload
from relaxc.service.records.sources import places, records_for
from relaxc.service.request import CompileOptions
from tests.records.samples import TARGET, record

SPEC = resolve("x86-64-v4")
MINE, OURS = record(seconds=2.0, host="mine"), record(seconds=1.0, host="ours")
ASKED = Workload(MINE.workload, MINE.dtype, MINE.shapes)


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path / "shipped", [OURS, record(target=RecordTarget("cuda", arch="sm_90"))])
    append(tmp_path / "mine", [MINE])
    monkeypatch.setattr(sources, "SHIPPED", tmp_path / "shipped")


def test_shipped_records_are_used_by_default() -> None:
    assert RecordTarget.of(SPEC) == TARGET
    found = records_for(SPEC, CompileOptions())
    assert found.lookup(ASKED, TARGET) == (OURS,)
    assert found.lookup(ASKED, RecordTarget("cuda", arch="sm_90")) == ()  # they are not even in force


def test_given_records_go_before_shipped_ones_however_fast_these_were_elsewhere(tmp_path: Path) -> None:
    found = records_for(SPEC, CompileOptions(records=(str(tmp_path / "mine"),)))
    assert found.lookup(ASKED, TARGET) == (MINE, OURS)
    assert found.digest != records_for(SPEC, CompileOptions()).digest


def test_without_the_default_ones_only_given_records_are_used(tmp_path: Path) -> None:
    assert records_for(SPEC, CompileOptions(default_records=False)).lookup(ASKED, TARGET) == ()
    options = CompileOptions(records=(str(tmp_path / "mine"),), default_records=False)
    assert records_for(SPEC, options).lookup(ASKED, TARGET) == (MINE,)


def test_the_setting_is_one_of_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "settings", lambda: config.Settings(records=tmp_path / "mine"))
    assert records_for(SPEC, CompileOptions()).lookup(ASKED, TARGET) == (MINE, OURS)
    assert places(CompileOptions(records=("a",))) == [Path("a"), tmp_path / "mine"]
    assert places(CompileOptions(records=("a",), default_records=False)) == [Path("a")]


def test_several_given_places_are_merged_in_any_order(tmp_path: Path) -> None:
    append(tmp_path / "other", [record(seconds=0.5), record(rule="cpu.rows")])
    both = [str(tmp_path / "mine"), str(tmp_path / "other")]
    one, two = (records_for(SPEC, CompileOptions(records=tuple(order))) for order in (both, both[::-1]))
    assert one.digest == two.digest and one.lookup(ASKED, TARGET) == two.lookup(ASKED, TARGET)


def test_a_relaxc_without_records_of_its_own_uses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SHIPPED", tmp_path / "nowhere")
    assert records_for(SPEC, CompileOptions()).layers == ()
    with pytest.raises(InvalidRecords):
        records_for(SPEC, CompileOptions(records=(str(tmp_path / "nowhere"),)))

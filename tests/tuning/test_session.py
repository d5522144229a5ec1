"""A durable run: what it tells is enough to go on from, in another folder, where it was killed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Self

import pytest

from relaxc.service.lowering.target import resolve
from relaxc.service.records.files import read
from relaxc.service.records.record import RecordSet
from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, ModelRef
from relaxc.service.tuning.journal import Journal
from relaxc.service.tuning.measure.outcome import Outcome
from relaxc.service.tuning.options import TuneOptions
from relaxc.service.tuning.session import Session
from relaxc.service.tuning.task import Task
from relaxc.service.tuning.tasks import FoundTasks
from relaxc.service.tuning.told import ELAPSED, KNOWN, RECORD, START, TRIAL, Told, lines_of, records_of
from tests.records.samples import record
from tests.tuning.synthetic import FakeMeasurer, task

TASKS = (task("a"), task("b", weight=3))


@pytest.fixture(autouse=True)
def one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record has its date: no midnight comes between two runs."""
    monkeypatch.setattr("relaxc.service.tuning.provenance.datetime", OneDay)


class OneDay(datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """A day."""
        return cls(2026, 11, 22, tzinfo=tz)


class Killed(BaseException):
    """What ends the process."""


class Measurer(FakeMeasurer):
    """One that may be entered, and that dies after so many trials."""

    most = 10**6

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def measure(
        self, task: Task, points: Any, ended: Callable[[Outcome], None] = lambda outcome: None
    ) -> list[Outcome]:
        outcomes = []
        for point in points:
            if len(self.measured) == self.most:
                raise Killed
            outcomes += super().measure(task, [point], ended)
        return outcomes


def tune(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    known: list[Told],
    most: int = 10**6,
    given: tuple[str, ...] = (),
    **options: Any,
) -> tuple[Measurer, list[Told], Path]:
    """What was measured, what was told, and the folder of the records."""
    folder.mkdir()
    (folder / KNOWN).write_text(lines_of(known))
    measurer, told = Measurer(), list(known)
    measurer.most = most
    monkeypatch.setattr("relaxc.service.tuning.session.Measurer", lambda *_, **__: measurer)
    model = ModelRef(ModelFormat.ONNX, "a" * 64, 1, folder / "m.onnx")
    request = CompileRequest(model, resolve("x86-64-v3"), CompileOptions(records=given))
    found = FoundTasks(TASKS, (), {})
    asked = TuneOptions(**{"trials": 24, "durable": True, **options})

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "trial":
            told.append(Told.of(event))

    session = Session(request, asked, found, None, folder, emit)
    try:
        session.tune()
    except Killed:
        assert len(measurer.measured) == most
    return measurer, told, session.into


@pytest.mark.parametrize("after", [1, 17, 40])
def test_a_killed_run_goes_on_from_what_it_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    whole, all_told, into = tune(tmp_path / "whole", monkeypatch, known=[])
    first, told, _ = tune(tmp_path / "first", monkeypatch, known=[], most=after)
    second, told, again = tune(tmp_path / "second", monkeypatch, known=told)
    assert first.measured + second.measured == whole.measured
    assert RecordSet(read(again)) == RecordSet(read(into)) == records_of(told)
    trials = [one.name for one in told if one.kind == TRIAL]
    assert len(trials) == len(set(trials)) == len(whole.measured)
    assert {one.kind for one in all_told} >= {TRIAL, START, ELAPSED, RECORD}
    assert [one.name for one in told if one.kind == RECORD] == [one.name for one in all_told if one.kind == RECORD]


def test_a_run_goes_on_on_a_server_that_has_its_records_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, told, _ = tune(tmp_path / "one", monkeypatch, known=[], given=("/one/records.jsonl",))
    again, _, _ = tune(tmp_path / "two", monkeypatch, known=told, given=("/two/records.jsonl",))
    assert whole.measured
    assert again.measured == []


def test_what_another_machine_has_measured_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, told, _ = tune(tmp_path / "whole", monkeypatch, known=[])
    monkeypatch.setattr("relaxc.service.machine.model_name", lambda: "another CPU")
    again, _, _ = tune(tmp_path / "again", monkeypatch, known=told)
    assert again.measured == whole.measured


def test_a_run_that_is_not_durable_tells_nothing_of_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurer, told, _ = tune(tmp_path / "run", monkeypatch, known=[], durable=False)
    assert measurer.measured
    assert told == []


def test_a_record_that_was_struck_out_is_none_of_the_won() -> None:
    kept, struck = record(seconds=1e-3), record(rule="cpu.other", seconds=2e-3)
    run = "0123456789abcdef"
    told = [Told(run, f"record {one.digest}", one.to_dict()) for one in (kept, struck)]
    assert records_of(told) == RecordSet([kept, struck])
    assert records_of([*told, Told(run, f"struck {struck.digest}", struck.digest)]) == RecordSet([kept])


def test_a_journal_knows_what_it_is_given_and_tells_what_is_on_the_disk(tmp_path: Path) -> None:
    told: list[tuple[str, Any]] = []
    with Journal(tmp_path, resume=True, known={"one": 1}, told=lambda name, value: told.append((name, value))) as one:
        one.note("two", 2)
        assert (one.noted("one"), one.noted("two"), told) == (1, 2, [("two", 2)])
    with Journal(tmp_path, resume=False, known={"one": 1}) as fresh:
        assert fresh.noted("one") is None

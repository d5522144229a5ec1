"""What children of `tune`, `bench` and `verify` jobs do in tests: like the real ones in form, and quick."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relaxc.service.jobs.database.rows import JobKind
from relaxc.service.process.task import Emit
from relaxc.service.tuning.measure.outcome import Outcome
from relaxc.service.tuning.told import KNOWN, TRIAL, Told, read_lines
from tests.records.samples import record


def tune(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tells progress for `time_s` seconds, then leaves a report and a curve."""
    emit({"event": "stage", "stage": "tune", "state": "start"})
    total = int(payload["time_s"] * 100) if payload["time_s"] < 60 else 10
    for done in range(total):
        emit({"event": "progress", "stage": "tune", "done": done + 1, "total": total})
        time.sleep(0.01)
    (workdir / "report.json").write_text('{"tasks": []}')
    (workdir / "curve.svg").write_text("<svg/>")
    emit({"event": "result", "files": ["report.json", "curve.svg"], "summary": {"gain": 1.5, "kept": [str(workdir)]}})


def search(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Goes on with the trials that were told: does three, tells each, and hangs in the next until all nine are told.

    With seed 1 it dies instead, with seed 2 it is done by then, and leaves the best record. Of each it tells the record
    too.
    """
    known = [one for one in read_lines((workdir / KNOWN).read_text()) if one.kind == TRIAL]
    for number in range(len(known), SEARCHED):
        if number == len(known) + 3:
            if payload["seed"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if payload["seed"] == 2:
                (workdir / "records.jsonl").write_text(json.dumps(trial_of(number - 1)[0].value) + "\n")
                emit({"event": "result", "files": ["records.jsonl"], "summary": {}})
                return
            time.sleep(600)
        for told in trial_of(number):
            emit({"event": "trial", **told.to_dict()})
    emit({"event": "result", "files": [], "summary": {"known": len(known), "time_s": payload["time_s"]}})


SEARCHED = 9
SEARCHES = {JobKind.TUNE: "tests.jobs.durable_entries:search"}


def trial_of(number: int) -> list[Told]:
    """What `search` tells of one trial."""
    outcome = Outcome({"rows": number}, "measured", 1e-3 / (number + 1), runs=5)
    won = record(parameters={"rows": number}, seconds=1e-3 / (number + 1))
    return [
        Told("0123456789abcdef", f"record {won.digest}", won.to_dict()),
        Told("0123456789abcdef", f"trial task rows={number}", asdict(outcome)),
    ]


def report(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Gives back what it was asked, once it has seen the files."""
    print("looking at", payload["artifact"], flush=True)
    size = Path(payload["artifact"]).stat().st_size
    emit({"event": "result", "report": {"bytes": size, "asked": sorted(payload), "aliases": payload.get("aliases")}})


def touch_peak(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tells whether it can read and write what is known of the machine."""
    folder, can = Path(os.environ["RELAXC_CACHE_DIR"]) / "peak", {}
    for name, call in (("read", lambda: (folder / "known.json").read_text()), ("write", (folder / "mine").touch)):
        try:
            call()
            can[name] = True
        except OSError:
            can[name] = False
    emit({"event": "result", "files": [], "report": can, "summary": can})


STRAYS = (("r1", "report.json"), ("../../outside", "report.json"), ("r1", "../report.json"), ("..", "report.json"))
"""The run and the file that `stray` names, by the seed; of the first nothing is wrong."""


def stray(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Leaves a tuning's report that would have files of it kept elsewhere."""
    run, name = STRAYS[payload["seed"]]
    (Path(payload["into"]) / ".journal" / "r1").mkdir(parents=True)
    (workdir / "report.json").write_text(json.dumps({"run": run}))
    emit({"event": "result", "files": [name]})

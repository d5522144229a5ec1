"""Has a server search for better kernels of a model, and brings home what it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from relaxc.service.client.calls import json_of, run, text_of
from relaxc.service.client.flow import Steps
from relaxc.service.client.job import Job
from relaxc.service.client.upload import upload
from relaxc.service.request import CompileOptions

__all__ = ["TuneWishes", "Tuned", "tune"]


class TuneWishes(TypedDict, total=False):
    """What a tuning may be told besides the model.

    `data`, `target`, `options` and `timeout_s` as for a compile. `trials` and `time_s` (seconds) bound the search;
    `records` is the digest of a record set to start from.
    """

    data: Iterable[Path] | None
    target: str
    options: CompileOptions | None
    trials: int | None
    time_s: float | None
    records: str | None
    priority: int
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Tuned:
    """A tuning that has ended: its `report` (docs/tuning.md), and the text of its records, empty where nothing won."""

    job: Job
    report: Mapping[str, Any]
    records: str


def tune(model: Path, wishes: TuneWishes) -> Steps[Tuned]:
    """Upload what is not there, have it tuned, and fetch report and records."""
    sent = yield from upload(model, wishes.get("data"))
    options = wishes.get("options")
    request = {
        "kind": "tune",
        "model": sent.digest,
        "target": wishes.get("target", "auto"),
        "options": None if options is None else options.to_dict(),
        "trials": wishes.get("trials"),
        "time_s": wishes.get("time_s"),
        "records": wishes.get("records"),
        "priority": wishes.get("priority"),
    }
    done, _ = yield from run(request, wishes.get("timeout_s"))
    report = yield from json_of(f"/v1/jobs/{done.id}/report")
    records = b"" if done.records is None else (yield from text_of(f"/v1/records/{done.records}"))
    return Tuned(done, report, records.decode())

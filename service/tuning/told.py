"""What a run tells of its journal while it lasts, so that it outlives the folder and the process of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, get_args

from relaxc.service.records.files import record_of
from relaxc.service.records.record import RecordSet
from relaxc.service.tuning.measure.outcome import Kind, Outcome

__all__ = ["ELAPSED", "KNOWN", "RECORD", "STRUCK", "TRIAL", "Told", "lines_of", "read_lines", "records_of"]

KNOWN = "known.trials"
"""The file of a job's folder that has, as JSON lines, what earlier runs of the job told."""

TRIAL, COMPARE, START, ELAPSED, RECORD, STRUCK = "trial", "compare", "start", "elapsed", "record", "struck"

_RUN = re.compile(r"[0-9a-f]{16}")
_MAX_NAME = 4096
_MAX_BYTES = 256 << 10
_OUTCOME = {field.name for field in fields(Outcome)}


@dataclass(frozen=True, slots=True)
class Told:
    """A line of the journal of `run`; its name's first word says what the value is.

    `trial`: an Outcome's fields; `compare`: a list of these; `start`: where the search of a task began; `elapsed`: the
    seconds of the run so far; `record`: a Record as JSON, which was won; `struck`: the digest of one that is no longer.
    """

    run: str
    name: str
    value: Any

    @staticmethod
    def of(data: Any) -> Told:
        """Return what a stranger says. Raise ValueError for what no run tells, or for over 256 KiB of it."""
        run, name, value = (data.get(field) for field in ("run", "name", "value"))
        if not isinstance(run, str) or not _RUN.fullmatch(run):
            raise ValueError("its run is none")
        if not isinstance(name, str) or len(name) > _MAX_NAME or "\0" in name:
            raise ValueError("its name is none")
        if len(json.dumps(value)) > _MAX_BYTES:
            raise ValueError(f"it has over {_MAX_BYTES} bytes")
        check = _CHECKS.get(name.partition(" ")[0])
        if check is None:
            raise ValueError("its name says nothing that is known")
        check(value)
        return Told(run, name, value)

    @property
    def kind(self) -> str:
        """The first word of its name."""
        return self.name.partition(" ")[0]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `of` is its inverse."""
        return {"run": self.run, "name": self.name, "value": self.value}


def lines_of(told: Iterable[Told]) -> str:
    """Return them as JSON lines."""
    return "".join(f"{json.dumps(one.to_dict())}\n" for one in told)


def read_lines(text: str) -> Iterator[Told]:
    """Yield what `lines_of` wrote."""
    return (Told.of(json.loads(line)) for line in text.splitlines())


def records_of(told: Iterable[Told]) -> RecordSet:
    """Return the records that were won, but for those that were struck out again."""
    listed = list(told)
    struck = {one.value for one in listed if one.kind == STRUCK}
    found = (record_of(one.value) for one in listed if one.kind == RECORD)
    return RecordSet(record for record in found if record.digest not in struck)


def _outcome(value: Any) -> None:
    if not isinstance(value, dict) or value.keys() != _OUTCOME:
        raise ValueError("an outcome has other fields")
    _point(value["point"])
    if value["kind"] not in get_args(Kind) or not isinstance(value["detail"], str) or type(value["loud"]) is not bool:
        raise ValueError("an outcome has other values")
    if (value["kind"] == "measured") is (value["seconds"] is None) or type(value["runs"]) is not int:
        raise ValueError("an outcome has a time if it was measured")
    for name in ("seconds", "spread", "error"):
        if value[name] is not None or name != "seconds":
            _number(value[name])


def _outcomes(value: Any) -> None:
    if not isinstance(value, list) or not value:
        raise ValueError("a comparison has outcomes")
    for one in value:
        _outcome(one)


def _start(value: Any) -> None:
    if not isinstance(value, dict) or value.keys() - {"trace"} != {"hints", "standing"}:
        raise ValueError("a start has other fields")
    if not isinstance(value["hints"], list) or not isinstance(value.get("trace", ""), str):
        raise ValueError("a start has other values")
    for hint in value["hints"]:
        _point(hint)
    if value["standing"] is not None:
        if not isinstance(value["standing"], list) or len(value["standing"]) != 2:
            raise ValueError("what stands is a point and its seconds")
        _point(value["standing"][0])
        _number(value["standing"][1])


def _point(value: Any) -> None:
    if not isinstance(value, dict) or any(type(number) is not int for number in value.values()):
        raise ValueError("a point has integers by name")


def _number(value: Any) -> None:
    if type(value) not in (int, float) or not isfinite(value) or value < 0:
        raise ValueError("seconds are a number")


def _digest(value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError("a digest is text")


_CHECKS: dict[str, Callable[[Any], object]] = {
    TRIAL: _outcome,
    COMPARE: _outcomes,
    START: _start,
    ELAPSED: _number,
    RECORD: record_of,
    STRUCK: _digest,
}

"""What a tuning run may be told, as one frozen value that goes to a child process and back as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from relaxc.service.errors import InvalidOption

__all__ = ["TuneOptions", "select"]

_TRACKER = re.compile(r"(?P<host>[^:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_SELECTION = re.compile(r"\d{1,6}(-\d{1,6})?")


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """`trials` a task on average (the untuned kernel is the first) and `time_s` for all, whichever is spent first.

    `tasks` is `all`, or numbers of the list: `0,3-5`. `records` are files and folders of records to start from, `into`
    the folder that new ones are added to; `threads` 0 is one for each core. `resume` goes on with the run that was
    interrupted; `again` searches also for what has a record, `exhaustive` gives nothing up before its trials. With
    `durable` the run tells its journal, line by line as events, to who keeps it, goes on with what the job's folder has
    of that, and `time_s` is for all such runs together.
    `rpc_tracker` is HOST:PORT of TVM's tracker, where the devices are registered under `rpc_key`. `list_only` says what
    the tasks are and measures nothing. `far_builders` is how many candidates at a time are built by who runs the job,
    elsewhere; 0 is none.
    """

    trials: int = 64
    time_s: float | None = None
    tasks: str = "all"
    seed: int = 0
    threads: int = 0
    records: tuple[str, ...] = ()
    into: str = ""
    resume: bool = False
    again: bool = False
    exhaustive: bool = False
    durable: bool = False
    rpc_tracker: str = ""
    rpc_key: str = ""
    list_only: bool = False
    far_builders: int = 0

    def __post_init__(self) -> None:
        _check("trials", self.trials >= 1, "it is at least 1")
        _check("time_s", self.time_s is None or self.time_s > 0, "it is a positive number of seconds")
        _check("seed", 0 <= self.seed < 2**31, "it is in 0..2**31-1")
        _check("threads", self.threads >= 0, "it is not negative")
        _check("far_builders", self.far_builders >= 0, "it is not negative")
        _check("rpc_key", bool(self.rpc_key) == bool(self.rpc_tracker), "tracker and key are given together")
        parts = self.tasks.split(",")
        _check("tasks", self.tasks == "all" or all(map(_SELECTION.fullmatch, parts)), "it is all, or like 0,3-5")
        if self.rpc_tracker:
            _check("rpc_tracker", _TRACKER.fullmatch(self.rpc_tracker) is not None, "it is HOST:PORT")

    @property
    def tracker(self) -> tuple[str, int] | None:
        """Host and port of the tracker, if there is one."""
        found = _TRACKER.fullmatch(self.rpc_tracker)
        return None if found is None else (found["host"].strip("[]"), int(found["port"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the options as JSON values; `from_dict` is its inverse."""
        return {**asdict(self), "records": list(self.records)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> TuneOptions:
        """Return options from JSON values, every one optional. Raise InvalidOption for an ill-typed or unknown one."""
        known = {option.name for option in fields(TuneOptions)}
        if unknown := sorted(set(data) - known):
            raise InvalidOption(f"unknown options: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        defaults = TuneOptions()
        for name, value in data.items():
            _check_type(name, value, getattr(defaults, name))
        return TuneOptions(**{**data, "records": tuple(map(str, data.get("records", ())))})


def select(tasks: str, count: int) -> list[int]:
    """Return the numbers that `TuneOptions.tasks` names, ascending. Raise InvalidOption for one that no task has."""
    if tasks == "all":
        return list(range(count))
    chosen: set[int] = set()
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        chosen.update(range(int(first), int(last or first) + 1))
    if not chosen or max(chosen) >= count:
        raise InvalidOption(f"--tasks {tasks}: there are tasks 0 to {count - 1}", option="tasks")
    return sorted(chosen)


def _check(option: str, holds: bool, says: str) -> None:
    if not holds:
        raise InvalidOption(f"tuning option {option}: {says}", option=option)


def _check_type(name: str, value: Any, default: Any) -> None:
    kinds: tuple[type, ...] = (type(default),)
    if name == "time_s":
        kinds = (float, int, type(None))
    elif name == "records":
        kinds = (list, tuple)
    _check(name, isinstance(value, kinds) and (isinstance(default, bool) or not isinstance(value, bool)), "wrong type")

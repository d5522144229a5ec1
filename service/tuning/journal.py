"""Every trial of a run as it ends, on disk before the next one starts: what `--resume` does not measure again."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from relaxc.service.errors import StoreUnwritable
from relaxc.service.tuning.measure.outcome import Outcome
from relaxc.service.tuning.task import Task

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["Journal", "name_of"]

_MOST_WRITERS = 100


class Journal:
    """JSON lines in files `N.trials` of a folder, one for each process that writes at the same time; a context manager.

    A line is a name and a value. Each is synced to the disk. A torn last line, which is what a kill or a full disk
    leaves, is cut off.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resume: bool,
        known: Mapping[str, Any] | None = None,
        told: Callable[[str, Any], None] = lambda name, value: None,
    ) -> None:
        """With `resume` what `folder` has is known, and what is `known` from elsewhere; without, all files that no
        process writes to are emptied. `told` hears of each line that is on the disk.

        Raise StoreUnwritable where nothing can be written.
        """
        self._known: dict[str, Any] = dict(known or {}) if resume else {}
        self._told = told
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder.parent / ".gitignore").write_text("*\n")
            self._file = _take(folder)
            if not resume:
                os.ftruncate(self._file, 0)
                _empty_the_free(folder)
            for path in sorted(folder.glob("*.trials")) if resume else ():
                self._known.update(_read(path))
            self._end = _whole_lines(self._file)
        except OSError as error:
            raise _unwritable(folder, error) from error
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def noted(self, name: str) -> Any:
        """Return the value under `name`; None where there is none."""
        return self._known.get(name)

    def note(self, name: str, value: Any) -> None:
        """Write a JSON value and wait for the disk. Raise StoreUnwritable; what was there before stays whole."""
        data = json.dumps({"name": name, "value": value}, sort_keys=True).encode() + b"\n"
        try:
            os.ftruncate(self._file, self._end)
            if os.pwrite(self._file, data, self._end) < len(data):
                raise OSError(errno.ENOSPC, "the disk is full")
            os.fsync(self._file)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        self._end += len(data)
        self._known[name] = value
        self._told(name, value)

    def trial(self, task: Task, point: Parameters) -> Outcome | None:
        """Return what became of `point` before, if it was measured."""
        value = self.noted(_trial(task, point))
        return None if value is None else Outcome(**value)

    def add_trial(self, task: Task, outcome: Outcome) -> None:
        """Note one trial, as `note`."""
        self.note(_trial(task, outcome.point), _plain(outcome))

    def compared(
        self, task: Task, points: Sequence[Parameters], compare: Callable[[], Sequence[Outcome]]
    ) -> list[Outcome]:
        """Return the outcomes of a comparison of these points and the untuned one: noted ones, or those of `compare`.

        These are noted if the untuned kernel was timed: where it was not, it was no comparison.
        """
        name = f"compare {' | '.join([name_of(task), *map(_values, points)])}"
        noted = self.noted(name)
        if noted is not None:
            return [Outcome(**value) for value in noted]
        found = list(compare())
        if found[-1].seconds is not None:
            self.note(name, [_plain(outcome) for outcome in found])
        return found


def name_of(task: Task) -> str:
    """Return what tells a task from others: the same in every run."""
    return f"{task.workload} {task.rule} {task.version} {task.dtype}"


def _trial(task: Task, point: Parameters) -> str:
    return f"trial {name_of(task)} {_values(point)}"


def _values(point: Parameters) -> str:
    return ",".join(f"{name}={point[name]}" for name in sorted(point))


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**asdict(outcome), "point": dict(outcome.point)}


def _take(folder: Path) -> int:
    """The first file that no other process writes to, locked until this one ends."""
    for number in range(_MOST_WRITERS):
        file = os.open(folder / f"{number}.trials", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        return file
    raise OSError(errno.EAGAIN, f"{_MOST_WRITERS} processes tune the same")


def _empty_the_free(folder: Path) -> None:
    """Empties what runs that ended have left, so that none of it is taken for this run's when it is resumed."""
    for path in folder.glob("*.trials"):
        with path.open("r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            file.truncate(0)


def _whole_lines(file: int) -> int:
    """The bytes up to the end of the last line that is whole."""
    data = os.pread(file, os.fstat(file).st_size, 0)
    return data.rfind(b"\n") + 1


def _read(path: Path) -> Iterator[tuple[str, Any]]:
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            row = json.loads(line)
            yield str(row["name"]), row["value"]
        except (ValueError, TypeError, KeyError):
            continue  # damaged: it is measured again


def _unwritable(folder: Path, error: OSError) -> StoreUnwritable:
    return StoreUnwritable(
        f"cannot write the trials to {folder}: {error.strerror or error}",
        remedy="Free space there, or give --records another folder; --resume goes on where it stopped.",
    )

"""Records on disk: a folder a target, a file a rule, a record a line; read whole, written under a lock.

ROOT/llvm-sapphirerapids-avx512/cpu.matmul_packed.jsonl
ROOT/llvm-sapphirerapids-avx512/.lock

A write replaces the file by a rename: who reads sees the old lines or the new ones, and a `kill -9` or a full disk
leaves the old. Files come from elsewhere too (git, an editor, a copy that was cut off), so a last line that breaks off
is taken for a torn one: it counts as not written, and is set aside when the file is next written.
"""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from relaxc.service.errors import InvalidRecords, StoreUnwritable
from relaxc.service.input_files import is_special
from relaxc.service.records.record import MAY_LACK, Record, RecordSet, RecordTarget

__all__ = ["SUFFIX", "append", "parse", "read", "record_of", "remove", "torn_copy"]

SUFFIX = ".jsonl"

_LOG = logging.getLogger("relaxc.tuning")
_MAX_BYTES = 256 << 20
_MAX_KEPT_BYTES = 4 << 20
_MAX_KEPT_FILE = 512 << 10
_FIELDS = {
    **dict.fromkeys(("workload", "rule", "dtype", "shapes", "host", "date", "tvm", "relaxc", *MAY_LACK), str),
    **dict.fromkeys(("version", "flops", "bytes", "threads", "trials", "seed"), int),
    **dict.fromkeys(("seconds", "untuned_s", "roofline"), float),
    **dict.fromkeys(("target", "parameters"), dict),
}
_MAY_BE_NULL = {"untuned_s", "roofline"}


def read(path: Path) -> RecordSet:
    """Return the records of one file, or of all files below a folder.

    Raise InvalidRecords where there is no such path, and for a line that is no record; a torn last line is left out
    with a warning.
    """
    return RecordSet(record for file in _files(path) for record in _known(file))


def parse(data: bytes, name: str) -> RecordSet:
    """Return the records of a content that has come whole, which messages call `name`.

    Raise InvalidRecords for a line that is no record, the last one as well.
    """
    found, torn = _records_of(data, name)
    if torn:
        raise InvalidRecords(f"{name}:{_last_line(data)} breaks off", path=name, line=_last_line(data))
    return RecordSet(found)


def append(root: Path, records: Iterable[Record]) -> None:
    """Add records to the folders of their targets below `root`; of two with one key the faster stays.

    When it returns they are on the disk. Any number of processes may append to one folder. Raise StoreUnwritable
    when they cannot be written: then the files are as before. InvalidRecords where a file there is damaged.
    """
    for target, added in _by_target(records).items():
        with _held(root / target.name) as folder:
            for rule, mine in _by_rule(added).items():
                file = folder / f"{rule}{SUFFIX}"
                before, torn = _parse(file) if file.exists() else ([], "")
                after = RecordSet([*before, *mine])
                if torn or RecordSet(before) != after:
                    _replace(file, after, torn)


def remove(root: Path, records: Iterable[Record]) -> None:
    """Take exactly these records out of the files below `root`; a file left without any is deleted.

    Raise what `append` does.
    """
    for target, unwanted in _by_target(records).items():
        with _held(root / target.name) as folder:
            for rule, mine in _by_rule(unwanted).items():
                file = folder / f"{rule}{SUFFIX}"
                before, torn = _parse(file) if file.exists() else ([], "")
                _replace(file, RecordSet(record for record in before if record not in mine), torn)


def record_of(data: Any) -> Record:
    """Return the record that `Record.to_dict` described. Raise ValueError for anything else."""
    if not isinstance(data, dict):
        raise ValueError("a record is a JSON object")
    if unknown := sorted(data.keys() - _FIELDS.keys()):
        raise ValueError(f"unknown fields {', '.join(unknown)}: a newer relaxc wrote it")
    if lacking := sorted(_FIELDS.keys() - data.keys() - MAY_LACK):
        raise ValueError(f"it lacks {', '.join(lacking)}")
    values = {name: _typed(name, value) for name, value in data.items()}
    if any(type(value) is not int for value in values["parameters"].values()):
        raise ValueError("parameters are integers")
    try:
        target = RecordTarget(**{str(name): _text("target", value) for name, value in values["target"].items()})
    except TypeError as error:
        raise ValueError(f"target: {error}") from error
    return Record(**{**values, "target": target})


def _typed(name: str, value: Any) -> Any:
    wanted = _FIELDS[name]
    if value is None and name in _MAY_BE_NULL:
        return None
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ValueError(f"{name} takes {wanted.__name__}, got {type(value).__name__}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} takes text, got {type(value).__name__}")
    return value


def torn_copy(file: Path) -> Path:
    """Return where the torn last lines of `file` are kept."""
    return file.with_suffix(".torn")


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        below = (found for found in path.rglob(f"*{SUFFIX}") if found.is_file())
        return sorted(file for file in below if not any(part[0] == "." for part in file.relative_to(path).parts))
    if not path.exists():
        raise InvalidRecords(f"there are no records at {path}", path=str(path))
    if is_special(path):
        raise InvalidRecords(f"cannot read the records at {path}: it is no regular file", path=str(path))
    return [path]


def _known(file: Path) -> tuple[Record, ...]:
    """The records of a file, parsed once for each version of it: every request that a server takes asks for them."""
    try:
        found = file.stat()
    except OSError as error:
        raise InvalidRecords(f"cannot read {file}: {error.strerror}", path=str(file)) from error
    version = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    return _parsed.get(file, version, found.st_size)


class _Parsed:
    """The records of small files that were read lately; a large one, as a client may upload many, is read each time."""

    def __init__(self, most_bytes: int = _MAX_KEPT_BYTES, most_a_file: int = _MAX_KEPT_FILE) -> None:
        self._most_bytes = most_bytes
        self._most_a_file = most_a_file
        self._kept: OrderedDict[Path, tuple[tuple[int, ...], int, tuple[Record, ...]]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0
        """The size of the files whose records are kept."""

    def get(self, file: Path, version: tuple[int, ...], size: int) -> tuple[Record, ...]:
        with self._lock:
            kept = self._kept.get(file)
            if kept is not None and kept[0] == version:
                self._kept.move_to_end(file)
                return kept[2]
        records = tuple(_parse(file)[0])
        if size <= self._most_a_file:
            self._keep(file, version, size, records)
        return records

    def _keep(self, file: Path, version: tuple[int, ...], size: int, records: tuple[Record, ...]) -> None:
        with self._lock:
            before = self._kept.pop(file, None)
            self._kept[file] = version, size, records
            self.bytes += size - (0 if before is None else before[1])
            while self.bytes > self._most_bytes:
                _, (_, gone, _) = self._kept.popitem(last=False)
                self.bytes -= gone


_parsed = _Parsed()


def _parse(file: Path) -> tuple[list[Record], str]:
    """The records of a file, and its last line if that is torn."""
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise InvalidRecords(f"{file} is over {_MAX_BYTES} bytes", path=str(file))
        data = file.read_bytes()
    except OSError as error:
        raise InvalidRecords(f"cannot read {file}: {error.strerror}", path=str(file)) from error
    found, torn = _records_of(data, str(file))
    if torn:
        _LOG.warning("%s:%d breaks off: its last record is taken as not written", file, _last_line(data))
    return found, torn


def _last_line(data: bytes) -> int:
    return data.count(b"\n") + 1


def _records_of(data: bytes, name: str) -> tuple[list[Record], str]:
    found: list[Record] = []
    lines = list(io.StringIO(data.decode(errors="replace")))  # unlike splitlines, at \n alone
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(record_of(json.loads(line)))
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not line.endswith("\n"):
                return found, line
            raise InvalidRecords(f"{name}:{number} is no record: {error}", path=name, line=number) from error
    return found, ""


@contextmanager
def _held(folder: Path) -> Iterator[Path]:
    """The folder, while no other process writes in it. Raise StoreUnwritable, also for what fails inside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder / ".lock"):
            yield folder
    except OSError as error:
        raise StoreUnwritable(
            f"cannot write records into {folder}: {error.strerror or error}",
            remedy=f"Free space on the disk of {folder}, or name another folder; no record was lost.",
            path=str(folder),
        ) from error


def _replace(file: Path, records: RecordSet, torn: str) -> None:
    if torn:
        with torn_copy(file).open("a", encoding="utf-8") as kept:
            kept.write(f"{torn}\n")
    if len(records) == 0:
        file.unlink(missing_ok=True)
        return
    for left in file.parent.glob(f".{file.name}.*"):  # by a writer that was killed: we hold the lock
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            new.write(records.to_lines())
            new.flush()
            os.fchmod(new.fileno(), 0o644)
            os.fsync(new.fileno())
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync(file.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _by_target(records: Iterable[Record]) -> dict[RecordTarget, list[Record]]:
    found: dict[RecordTarget, list[Record]] = defaultdict(list)
    for record in records:
        found[record.target].append(record)
    return found


def _by_rule(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        found[record.rule].append(record)
    return found

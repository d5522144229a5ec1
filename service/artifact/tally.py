"""How many bytes a store has at most: counted as artifacts come, so that a put need not read all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relaxc.service.artifact.locks import held

__all__ = ["Tally"]


class Tally:
    """Two numbers in a file that any process may add to: the bytes there are, and all that ever came. The first is too
    large where artifacts were removed since `recount`.

    A machine that lost power may have older ones, until the next recount.
    """

    def __init__(self, path: Path, lock: Path) -> None:
        self._path = path
        self._lock = lock

    def add(self, size_bytes: int) -> int | None:
        """Count bytes that have come, and return how many there are at most; None where nobody has counted them all."""
        with held(self._lock):
            known, came = self._read()
            total = None if known is None else known + size_bytes
            self._write(total, came + size_bytes)
        return total

    @contextmanager
    def recount(self) -> Iterator[list[int]]:
        """Give a list for the bytes that the caller finds; what others `add` meanwhile is counted beside them."""
        found: list[int] = []
        with held(self._lock):
            known, before = self._read()
            self._write(known, before)
        yield found
        with held(self._lock):
            came = self._read()[1]
            self._write(None if came < before else sum(found) + came - before, came)  # less: the file was lost

    def _read(self) -> tuple[int | None, int]:
        try:
            known, came = self._path.read_text().split()
            return None if known == "?" else int(known), int(came)
        except (FileNotFoundError, ValueError):
            return None, 0

    def _write(self, known: int | None, came: int) -> None:
        self._path.write_text(f"{'?' if known is None else known} {came}")

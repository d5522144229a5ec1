"""How many bytes a store has at most: counted as artifacts come, so that a put need not read all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relaxc.service.artifact.locks import held

__all__ = ["Tally"]


class Tally:
    """A number in a file that any process may add to. It is too large where artifacts were removed since `recount`.

    A machine that lost power may have an older one, until the next recount.
    """

    def __init__(self, path: Path, lock: Path) -> None:
        self._path = path
        self._lock = lock

    def add(self, size_bytes: int) -> int | None:
        """Count bytes that have come, and return how many there are at most; None where nobody has counted them all."""
        with held(self._lock):
            known = self._read()
            if known is not None:
                self._path.write_text(str(known + size_bytes))
        return None if known is None else known + size_bytes

    @contextmanager
    def recount(self) -> Iterator[list[int]]:
        """Give a list for the bytes that the caller finds; what others `add` meanwhile is counted beside them."""
        found: list[int] = []
        before = self._read()
        yield found
        with held(self._lock):
            now = self._read()
            came = now - before if now is not None and before is not None else 0
            self._path.write_text(str(sum(found) + max(0, came)))

    def _read(self) -> int | None:
        try:
            return int(self._path.read_text())
        except (FileNotFoundError, ValueError):
            return None

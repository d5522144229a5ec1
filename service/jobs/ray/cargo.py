"""The files of shipments in Ray's object store, each once as long as a task has it, and a while longer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaxc.service.jobs.ray.node import CHUNK_BYTES, Cargo
from relaxc.service.jobs.ray.shipment import Shipment

__all__ = ["Cargos"]

_IDLE = 64
"""Files that nobody uses now: the next job is often about the same model."""

_Key = tuple[str, int, int, int]


class Cargos:
    """`put` gives a reference to bytes, which Ray forgets when the last one to it goes."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put = put
        self._known: OrderedDict[_Key, list[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, shipment: Shipment) -> Cargo:
        """Return the files of a shipment, by root and path below it."""
        return {(number, rest): self._chunks(path) for number, rest, path in shipment.files()}

    def _chunks(self, path: Path) -> list[Any]:
        facts = path.stat()
        key = str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        with path.open("rb") as file:
            chunks = [self._put(chunk) for chunk in iter(lambda: file.read(CHUNK_BYTES), b"")]
        with self._lock:
            self._known[key] = chunks
            while len(self._known) > _IDLE:
                self._known.popitem(last=False)
        return chunks

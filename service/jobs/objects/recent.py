"""Small immutable things by their digest, kept in memory while they are asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict

__all__ = ["Recent"]


class Recent:
    """The texts that were used last, at most `max_bytes` of them together; any thread may call it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._texts: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        """Return the text that was put under this digest, if it is still here."""
        with self._lock:
            text = self._texts.get(digest)
            if text is not None:
                self._texts.move_to_end(digest)
            return text

    def put(self, digest: str, text: bytes) -> None:
        """Keep it until others have pushed it out; what is larger than a quarter of the room is not kept."""
        if len(text) > self._max_bytes // 4:
            return
        with self._lock:
            self._bytes += len(text) - len(self._texts.pop(digest, b""))
            self._texts[digest] = text
            while self._bytes > self._max_bytes:
                _, oldest = self._texts.popitem(last=False)
                self._bytes -= len(oldest)

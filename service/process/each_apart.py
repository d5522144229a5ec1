"""Calls in forks of this process, one for each: what a call reads can harm its own answer, and no other's."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from relaxc.service.process.limits import die_with_parent

__all__ = ["Answer", "each_apart"]

_LENGTH = struct.Struct("!Q")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What the call `index` returned; None where its process died before it had said all, with how it ended."""

    index: int
    data: bytes | None
    status: int = 0
    """As `os.waitpid` has it."""


@dataclass(slots=True)
class _Fork:
    index: int
    pid: int
    said: bytearray = field(default_factory=bytearray)

    def answer(self) -> Answer:
        """Reap the process, which has closed its end, and return what it said."""
        _, status = os.waitpid(self.pid, 0)
        head, data = self.said[: _LENGTH.size], bytes(self.said[_LENGTH.size :])
        whole = len(head) == _LENGTH.size and _LENGTH.unpack(head)[0] == len(data)
        return Answer(self.index, data if whole and status == 0 else None, status)


def each_apart(calls: Sequence[Callable[[], bytes]], *, at_once: int, closed: Sequence[int] = ()) -> Iterator[Answer]:
    """Yield the answer of each call as it comes; they begin in order, at most `at_once` run at a time.

    No fork has the descriptors `closed`, nor what another one answers through, and all end with this process.
    """
    poll, forks = select.poll(), dict[int, _Fork]()
    pending = list(enumerate(calls))[::-1]
    while pending or forks:
        while pending and len(forks) < at_once:
            index, call = pending.pop()
            pid, end = _fork(call, [*closed, *forks])
            forks[end] = _Fork(index, pid)
            poll.register(end, select.POLLIN)
        for end, _ in poll.poll():
            if chunk := os.read(end, _CHUNK_BYTES):
                forks[end].said += chunk
                continue
            poll.unregister(end)
            os.close(end)
            yield forks.pop(end).answer()


def _fork(call: Callable[[], bytes], closed: Sequence[int]) -> tuple[int, int]:
    """The process, and where its answer comes from."""
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, ours
    code = 70
    try:
        die_with_parent(parent)
        for number in (ours, *closed):
            os.close(number)
        data = call()
        with os.fdopen(theirs, "wb") as file:
            file.write(_LENGTH.pack(len(data)) + data)
        code = 0
    finally:
        # No atexit handlers and no destructors: libraries tear down threads that the fork does not have.
        os._exit(code)

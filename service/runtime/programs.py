"""The programs of a session: one for each call that goes on at a time, made when it is needed, and kept."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque

from relaxc.service.runtime.program import Code, Program

__all__ = ["Programs"]

_all: weakref.WeakSet[Programs] = weakref.WeakSet()


def _forked() -> None:
    """Free, in a process that was forked, the programs that other threads were calling."""
    for programs in _all:
        programs._free()


os.register_at_fork(after_in_child=_forked)


class _Waiter:
    """A call that waits at its gate until it has a program."""

    def __init__(self) -> None:
        self.program: Program | None = None
        self.gate = threading.Lock()
        self.gate.acquire()


class Programs:
    """Up to `most` programs of the same code; calls beyond wait, and are served as they came."""

    def __init__(self, code: Code, most: int) -> None:
        self.first = Program(code)
        self.waiting: deque[_Waiter] = deque()
        self._code, self._most = code, most
        self._made, self._lock = [self.first], threading.Lock()
        _all.add(self)

    def take(self) -> Program:
        """Return a program that nobody else has; the first, where that is free. Who takes one gives it back."""
        if not self.waiting and self.first.lock.acquire(blocking=False):
            return self.first
        return self.another()

    def another(self) -> Program:
        """Return the same, where others wait or the first was taken: `Session.__call__` saves a call."""
        waiter = _Waiter()
        try:
            with self._lock:
                self.waiting.append(waiter)
                self._serve()
            waiter.gate.acquire()
        except BaseException:
            with self._lock:
                if waiter in self.waiting:
                    self.waiting.remove(waiter)
            if waiter.program is not None:
                self.give(waiter.program)
            raise
        assert waiter.program is not None
        return waiter.program

    def give(self, program: Program) -> None:
        """Let others have `program`."""
        program.lock.release()
        if self.waiting:  # read after the release: who waits is in the line before it looks
            self.tell()

    def tell(self) -> None:
        """Give what is free to those who wait."""
        with self._lock:
            self._serve()

    def _serve(self) -> None:
        while self.waiting and (free := self._free_one()) is not None:
            waiter = self.waiting.popleft()
            waiter.program = free
            waiter.gate.release()

    def _free_one(self) -> Program | None:
        """A program, taken; None where all are."""
        for program in self._made:
            if program.lock.acquire(blocking=False):
                return program
        if len(self._made) == self._most:
            return None
        program = Program(self._code)
        program.lock.acquire()
        self._made.append(program)
        return program

    def _free(self) -> None:
        self._lock = threading.Lock()
        self.waiting.clear()
        for program in self._made:
            program.lock = threading.Lock()

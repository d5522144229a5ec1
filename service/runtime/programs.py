"""The programs of a session: one for each call that goes on at a time, made when it is needed, and kept."""

from __future__ import annotations

import os
import threading
import weakref

from relaxc.service.runtime.program import Code, Program

__all__ = ["Programs"]

_all: weakref.WeakSet[Programs] = weakref.WeakSet()


def _forked() -> None:
    """Free, in a process that was forked, the programs that other threads were calling."""
    for programs in _all:
        programs._free()


os.register_at_fork(after_in_child=_forked)


class Programs:
    """Up to `most` programs of the same code; calls beyond wait. One thread always has the first."""

    def __init__(self, code: Code, most: int) -> None:
        self.first = Program(code)
        self._code, self._most = code, most
        self._made = [self.first]
        self._changed, self._waiting = threading.Condition(threading.Lock()), 0
        _all.add(self)

    def take(self) -> Program:
        """Return a program that nobody else has. Who takes one gives it back."""
        if self.first.lock.acquire(blocking=False):
            return self.first
        with self._changed:
            self._waiting += 1
            try:
                while (free := self._another()) is None:
                    self._changed.wait()
                return free
            finally:
                self._waiting -= 1

    def _another(self) -> Program | None:
        for program in self._made:
            if program.lock.acquire(blocking=False):
                return program
        if len(self._made) == self._most:
            return None
        program = Program(self._code)
        program.lock.acquire()
        self._made.append(program)
        return program

    def take_only(self, program: Program) -> None:
        """Return when the calling thread has `program`, which it gives back."""
        program.lock.acquire()

    def give(self, program: Program) -> None:
        """Let others have `program`."""
        program.lock.release()
        if self._waiting:  # read after the release: who waits has counted itself before it looked
            with self._changed:
                self._changed.notify()

    def _free(self) -> None:
        self._changed, self._waiting = threading.Condition(threading.Lock()), 0
        for program in self._made:
            program.lock = threading.Lock()

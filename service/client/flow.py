"""What a call does, without doing it: steps that ask for one thing at a time, which a sync or an async shell performs.

The idea is that of httpx's own `Auth.auth_flow`: a generator yields what it wants done and is sent what came of it, so
that everything but the waiting is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["Action", "Call", "Emit", "Flow", "Read", "Sleep", "Steps", "Work"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request. The answer is an `httpx.Response` under 300; any other is raised as its RelaxcError.

    With `stream` the body is left for `Read`. `files` are the parts of a form, (field, path), opened when it is sent.
    `repeatable`: doing it twice is doing it once. `resumes`: it goes on with what the server has accepted, so a server
    that is gone for a while is worth waiting for. `timeout_s`: how long the server may be silent, if not as usual.
    """

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    files: tuple[tuple[str, Path], ...] = ()
    stream: bool = False
    repeatable: bool = True
    resumes: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """The next bytes of the answer that was opened last, b"" at its end."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Nothing for some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Something that blocks on this machine, such as hashing a file; the async shell does it in a thread."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Emit:
    """A value for whoever listens."""

    value: Any


Action = Call | Read | Sleep | Work | Emit
Steps = Generator[Action, Any, T]


class _Left(BaseException):
    """Who ran the steps has gone. GeneratorExit itself would close nested generators, which still have to act."""


class Flow(Generic[T]):
    """Steps under way: what they want next, and at the end their result."""

    result: T

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps

    def start(self) -> Action | None:
        """Return the first action; None when there is none."""
        return self._advance(lambda: next(self._steps))

    def send(self, reply: Any) -> Action | None:
        """Return the next action, after this one gave `reply`; None at the end."""
        return self._advance(lambda: self._steps.send(reply))

    def throw(self, error: BaseException) -> Action | None:
        """Return the next action, after this one raised `error`. Raise what the steps do not handle, but
        GeneratorExit.
        """
        raised = _Left() if isinstance(error, GeneratorExit) else error
        return self._advance(lambda: self._steps.throw(raised))

    def _advance(self, step: Callable[[], Action]) -> Action | None:
        try:
            return step()
        except StopIteration as end:
            self.result = end.value
        except _Left:
            pass
        return None

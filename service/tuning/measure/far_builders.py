"""Builders on other machines: each build is asked for over the job's line, and the answer has its library."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from relaxc.service.tuning.measure.messages import Build, Built, emitted_beside
from relaxc.service.tuning.measure.pool import Done, Lost, Seats
from relaxc.service.tuning.task import How

__all__ = ["FarBuilders", "asked_build", "packed"]

_KINDS = ("built", "refused", "build-failed", "crashed", "hung")
_LATE_S = 60.0
"""Beside a build's own time: its way there and back, a wait for a free machine, and another where one is lost."""


class Line(Protocol):
    """What a Measurer needs of `relaxc.service.process.line.Line`."""

    def ask(self, question: dict[str, Any]) -> None:
        """Ask for something."""
        ...

    def fileno(self) -> int:
        """Return what to poll for answers."""
        ...

    def answers(self) -> list[dict[str, Any]]:
        """Return what has come."""
        ...


@dataclass(slots=True)
class _Asked:
    ident: Hashable
    build: Build
    limit_s: float
    deadline: float


class FarBuilders(Seats):
    """`count` builds at a time, wherever they are done; to a `Batch` it is a pool of builders.

    `config` is what a builder here gets: the target, the rules and the memory.
    """

    def __init__(self, line: Line, count: int, config: dict[str, Any]) -> None:
        self._line, self._count = line, count
        self._about = {name: config[name] for name in ("target", "rules", "memory_bytes")}
        self._asked: dict[int, _Asked] = {}
        self._number = 0

    @property
    def free(self) -> int:
        """How many more can be asked for now."""
        return self._count - len(self._asked)

    @property
    def busy(self) -> int:
        """How many are under way."""
        return len(self._asked)

    def submit(self, ident: Hashable, job: Any, limit_s: float) -> None:
        """Ask for a build; what is answered comes as `ident`."""
        assert isinstance(job, Build)
        self._number += 1
        self._asked[self._number] = _Asked(ident, job, limit_s, time.monotonic() + limit_s + _LATE_S)
        said = {name: value for name, value in asdict(job).items() if name != "out"}
        self._line.ask({"build": self._number, **said, **self._about, "limit_s": limit_s})

    def end_idle(self) -> None:
        """Do nothing: none is ours."""

    def drop_busy(self) -> None:
        """Forget what was asked for; the answers are not heard."""
        self._asked.clear()

    def connections(self) -> list[Any]:
        """See `Seats`."""
        return [self._line] if self._asked else []

    def next_deadline(self) -> float:
        """See `Seats`."""
        return min((one.deadline for one in self._asked.values()), default=float("inf"))

    def ready(self, connections: Sequence[object], now: float) -> Iterable[Done]:
        """See `Seats`."""
        for answer in self._line.answers() if self._line in connections else ():
            one = self._asked.pop(int(answer["build"]), None)
            if one is not None:
                yield Done(one.ident, _unpacked(answer, one.build))
        for number in [number for number, one in self._asked.items() if now > one.deadline]:
            one = self._asked.pop(number)
            yield Done(one.ident, Lost("hung", f"it was not done after {one.limit_s:g} s"))


def asked_build(question: dict[str, Any], out: Path) -> Build:
    """Return the build that a job asks for, a stranger's word, as the library `out`. Raise TypeError, KeyError."""
    how = How(**question["how"])
    return Build(question["func_json"], how, str(out), question["group_json"], question["operator"])


def packed(built: Built, out: Path) -> dict[str, Any]:
    """Return the answer to one: what it came to, and the files that it left."""
    if built.kind != "built":
        return {"kind": built.kind, "detail": built.detail}
    beside = emitted_beside(str(out))
    emitted = {"emitted": beside.read_text()} if beside.exists() else {}
    return {"kind": "built", "library": base64.b64encode(out.read_bytes()).decode(), **emitted}


def _unpacked(answer: dict[str, Any], build: Build) -> Built | Lost:
    kind, detail = answer.get("kind"), str(answer.get("detail", ""))
    if kind not in _KINDS:
        return Built("build-failed", f"an answer that means nothing: {json.dumps(kind)[:100]}")
    if kind == "crashed" or kind == "hung":
        return Lost(kind, detail)
    if kind == "built":
        Path(build.out).write_bytes(base64.b64decode(answer["library"]))
        if "emitted" in answer:
            emitted_beside(build.out).write_text(answer["emitted"])
    return Built(kind, detail)

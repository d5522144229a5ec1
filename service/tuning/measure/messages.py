"""What the tuner and its workers send each other: one request, one answer, both picklable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from relaxc.service.tuning.measure.outcome import Kind
    from relaxc.service.tuning.task import How

__all__ = [
    "Build",
    "Built",
    "Compare",
    "Heard",
    "Listen",
    "Ran",
    "Reference",
    "Request",
    "Run",
    "Subject",
    "answer_all",
    "emitted_beside",
]


def emitted_beside(library: str) -> Path:
    """Return where the PrimFunc of a library is, if it was emitted anew."""
    return Path(f"{library}.json")


@dataclass(frozen=True, slots=True)
class Build:
    """To a builder: the PrimFunc scheduled as `how` says, as the library `out`.

    With `group_json` it is emitted anew by the plan that `how` is for the `operator`, and left `emitted_beside` the
    library as JSON.
    """

    func_json: str
    how: How
    out: str
    group_json: str = ""
    operator: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Built:
    """From a builder: `kind` is `built`, or why there is no library."""

    kind: Literal["built", "refused", "build-failed"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The PrimFunc whose candidates run: its inputs come from a seed, what it must give is in the file `expected`.

    The parameters at the positions `weights` are weights of a model that has `weight_bytes` of them.
    """

    key: str
    func_json: str
    sizes: Mapping[str, int]
    expected: str
    weights: tuple[int, ...] = ()
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Reference:
    """To a runner: run the untuned library and write `expected`; answered by a Ran without a time."""

    subject: Subject
    library: str


@dataclass(frozen=True, slots=True)
class Run:
    """To a runner: check and time a library; `hopeless_s` is the time above which it need not be exact."""

    subject: Subject
    library: str
    hopeless_s: float


@dataclass(frozen=True, slots=True)
class Compare:
    """To a runner: check the libraries, and time those that are right in `rounds` rounds; answered by a list of Ran."""

    subject: Subject
    libraries: tuple[str, ...]
    rounds: int


@dataclass(frozen=True, slots=True)
class Ran:
    """From a runner: `kind` as in an Outcome; `unreachable`: the remote device went away."""

    kind: Kind | Literal["unreachable"]
    seconds: float | None = None
    spread: float = 0.0
    runs: int = 0
    detail: str = ""
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Listen:
    """To the local runner: time the reference kernel."""


@dataclass(frozen=True, slots=True)
class Heard:
    """From the local runner: the median and the spread of the reference kernel."""

    seconds: float
    spread: float


Request = Reference | Run | Compare
"""To a runner: what `trials.Trials` answers."""


def answer_all(connection: Connection, answer: Callable[[Any], Any]) -> None:
    """Send `answer` of each request that comes, in turn, until the tuner hangs up."""
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        connection.send(answer(request))

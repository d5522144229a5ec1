"""What a tuner did on one case, as both of them write it down."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Curve", "read_curve"]


@dataclass(frozen=True)
class Curve:
    """`steps`: (trials, seconds since the start, best seconds so far) whenever the best changed, and at the end.

    `library` has the best kernel under `symbol`; `shapes` are its arguments, the outputs among them. `limit_s` is the
    least time that it can take here, 0 where that is not known.
    """

    case: str
    tuner: str
    trials: int
    seconds: float
    steps: tuple[tuple[int, float, float], ...]
    library: str
    symbol: str
    shapes: tuple[tuple[int, ...], ...]
    ended: str = ""
    limit_s: float = 0.0

    @property
    def per_minute(self) -> float:
        """Trials a minute of the whole run, searching included."""
        return 60 * self.trials / self.seconds

    def trials_to(self, part: float) -> int | None:
        """The trials after which the best reached that part of the limit; None if it never did."""
        return next((trials for trials, _, best in self.steps if self.limit_s >= part * best), None)

    def write(self, path: Path) -> None:
        """As one JSON object; `read_curve` is the inverse."""
        path.write_text(json.dumps(asdict(self)) + "\n")


def read_curve(path: Path) -> Curve:
    """What `Curve.write` wrote."""
    data = json.loads(path.read_text())
    return Curve(
        **{**data, "steps": tuple(map(tuple, data["steps"])), "shapes": _tuples(data["shapes"])},
    )


def _tuples(shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in shapes)

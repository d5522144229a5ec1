"""The stages of a compile: their names, the time that each takes, and what those before the build leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from relaxc.service.errors import CompileFailed, CompilerOutOfMemory, RelaxcError
from relaxc.service.process.task import Emit
from relaxc.service.process.timings import Timings

if TYPE_CHECKING:
    from relaxc.service.frontend.model import ImportedModel
    from relaxc.service.lowering import Scheduled
    from relaxc.service.passes import Optimized

__all__ = ["STAGES", "Front", "Stages"]

STAGES = ("import", "optimize", "schedule", "build", "verify", "pack")


@dataclass
class Stages:
    """Tells the caller about each stage, times it, and gives what a stage raises the stage's name."""

    emit: Emit
    seconds: dict[str, float] = field(default_factory=dict)
    timings: Timings = field(default_factory=Timings)

    @contextmanager
    def __call__(self, name: str) -> Iterator[Callable[[int, int], None]]:
        self.emit({"event": "stage", "stage": name, "state": "start"})
        start = time.perf_counter()
        try:
            yield lambda done, total: self.emit({"event": "progress", "stage": name, "done": done, "total": total})
        except RelaxcError as error:
            error.fields.setdefault("stage", name)
            raise
        except MemoryError as error:
            raise CompilerOutOfMemory(f"stage {name} ran out of memory", stage=name) from error
        except Exception as error:  # the one place where a stage's bug gets its name
            raise CompileFailed(f"stage {name}: {_first_line(error)}", stage=name) from error
        seconds = round(time.perf_counter() - start, 4)
        self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 4)  # of several parts, of all
        self.emit({"event": "stage", "stage": name, "state": "done", "seconds": seconds})


@dataclass(frozen=True)
class Front:
    """What the stages before the build leave, and the digest of the records that they used."""

    imported: ImportedModel
    optimized: Optimized
    scheduled: Scheduled
    records: str


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"

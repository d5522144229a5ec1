"""What clients of the fleet drill ask for, and on which kinds of machine each of it may run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.drills.clients import Visitor
from tests.drills.entries import TRIALS, Act

__all__ = ["MAY_RUN_ON", "SCRIPTS", "UNVERIFIED", "Wishes"]

ALL = frozenset({"zen", "haswell", "hopper"})

MAY_RUN_ON: Mapping[tuple[str, str], frozenset[str]] = {
    **{(kind, "x86-64-v3"): ALL for kind in ("compile", "tune", "bench", "verify")},
    **{(kind, "znver4"): frozenset({"zen"}) for kind in ("compile", "tune", "bench", "verify")},
    **{(kind, "cuda-sm90"): frozenset({"hopper"}) for kind in ("compile", "tune", "bench", "verify")},
    **{("tune", name): frozenset({"haswell", "hopper"}) for name in ("haswell", "auto-gpu")},
    ("tune", "auto-gpu"): frozenset({"hopper"}),
    ("compile", "haswell"): ALL,  # a Zen 4 runs that code too
    ("compile", "auto"): ALL,
    ("compile", "aarch64"): ALL,
}
"""By kind of job and target. A compile for a kind that has just died may be anywhere: nobody could verify it."""

UNVERIFIED = {"znver4": ALL, "cuda-sm90": frozenset({"zen", "hopper"})}
"""Where a compile may run when none of its kind was alive as it was asked for."""


class Wishes(dict[str, tuple[str, str]]):
    """The kind and target of each job that was accepted, by its id."""


def _compiles(wishes: Wishes) -> Callable[[Visitor], None]:
    def script(visitor: Visitor) -> None:
        """Five compiles at once, for this and that machine; then what was made is fetched."""
        model = visitor.upload(visitor.rng.randrange(4, 200))
        targets = ["auto", *visitor.rng.sample(["x86-64-v3", "znver4", "cuda-sm90", "haswell", "aarch64"], 4)]
        asked = []
        for target in targets:
            job = visitor.submit("compile", Act.MADE, model=model, target=target, shapes={"sleep_s": [1]})
            wishes[job.id] = ("compile", target)
            asked.append(job)
        for job in asked:
            visitor.fetch(visitor.finish(job))

    return script


def _runs(wishes: Wishes) -> Callable[[Visitor], None]:
    def script(visitor: Visitor) -> None:
        """A compile for one kind of machine, and what is done with it there."""
        model = visitor.upload(visitor.rng.randrange(4, 200))
        target = visitor.rng.choice(["x86-64-v3", "znver4", "cuda-sm90"])
        job = visitor.submit("compile", Act.SPRAWL, model=model, target=target)
        wishes[job.id] = ("compile", target)
        made = visitor.finish(job)
        if made.artifact is None:
            return
        for kind, more in (("bench", {}), ("verify", {"model": model})):
            job = visitor.submit(kind, Act.MADE, artifact=made.artifact, **more)
            wishes[job.id] = (kind, target)
            visitor.finish(job)

    return script


def _tunes(wishes: Wishes) -> Callable[[Visitor], None]:
    def script(visitor: Visitor) -> None:
        """Three tunings, each for one kind of machine or for whoever is free."""
        model = visitor.upload(visitor.rng.randrange(4, 200))
        asked = []
        for target in visitor.rng.sample(["x86-64-v3", "znver4", "cuda-sm90", "haswell", "auto-gpu"], 3):
            job = visitor.submit("tune", Act.MADE, model=model, target=target, time_s=60.0)
            wishes[job.id] = ("tune", target)
            asked.append(job)
        for job in asked:
            tuned = visitor.finish(job)
            if tuned.state == "succeeded" and tuned.result.get("trials") != TRIALS:
                visitor.account.wrong.append(f"{tuned.id} made {tuned.result}")

    return script


SCRIPTS = {"compiles": _compiles, "runs": _runs, "tunes": _tunes}

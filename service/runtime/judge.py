"""What the outputs of an artifact are held against: the reference, without rewrites, in float64, moved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relaxc.service.errors import ModelError
from relaxc.service.runtime.compare import compare
from relaxc.service.runtime.moved import MORE, RUNS, Run, moved_outputs, scattered_outputs
from relaxc.service.runtime.slices import Slices
from relaxc.service.runtime.small_slices import SmallSlices
from relaxc.service.runtime.ties import ties_of
from relaxc.service.runtime.tolerances import LEAST_COSINE, LOW, TOLERANCES, Moved
from relaxc.service.runtime.verification import Verification

__all__ = ["Judge"]

Arrays = Mapping[str, Any]

_FEW = 8
"""A whole output is judged by values that move an eighth of what small slices are: 6 units of float32's last place."""


@dataclass
class Judge:
    """What outputs are held against, and the sums over all draws of those that are judged by moved runs."""

    reference: Run
    unquantized: Run | None
    moved: Callable[[], Iterable[Run]]
    judges: Mapping[str, str]
    seed: int
    values: Callable[[float], Run | None]
    plain: Callable[[], Run | None]
    double: Callable[[], Run | None]
    double_values: Callable[[float], Run | None]
    noisy: bool = False
    """Whether the reference itself moves so far on the last inputs that nothing can be told by them."""
    slices: defaultdict[str, Slices] = field(default_factory=lambda: defaultdict(Slices))
    small: dict[str, SmallSlices] = field(default_factory=dict)
    precise: Run | None = None
    """The reference in float64, once it has judged."""

    def compared(self, inputs: Arrays, got: Arrays, wanted: Arrays) -> Verification:
        """Return whether outputs are the reference's, or as far from it as roundings may move them.

        A reference that its own rewrites change gives way to the one without them, from then on.
        """
        real = self.unquantized(inputs) if self.unquantized is not None else None
        self.noisy = False
        found = self.judged(inputs, got, wanted, real)
        if not found.passed and (plain := self.second_opinion(found)) is not None:
            other = plain(inputs)
            if not (apart := compare(wanted, other, self.judges)).passed:
                self.reference, wanted = plain, other
                found = self.judged(inputs, got, other, real).second(found, apart)
        best = wanted
        if not found.passed and self.asks_for_float64(found):
            found, best = self.in_float64(found, inputs, got, wanted)
            found = found if found.passed else self.by_moved_values(found, inputs, got, wanted, best)
        if found.passed:
            for name, each in self.small_of(found).items():
                self.small.setdefault(name, each).add(got[name], best[name])
        return found if real is None else found.quantized(got, wanted, real)

    def judged(self, inputs: Arrays, got: Arrays, wanted: Arrays, real: Arrays | None) -> Verification:
        """Return whether outputs are those that are wanted, or as far from them as roundings may move them."""
        found = compare(got, wanted, self.judges)
        if found.passed:
            return found
        ties = ties_of(self.reference, inputs, wanted, seed=self.seed)
        found = compare(got, wanted, self.judges, ties)
        return found if found.passed else self.by_moved_runs(inputs, got, wanted, real, ties) or found

    def second_opinion(self, found: Verification) -> Run | None:
        """Return the reference without rewrites, but of a quantized model that rounding scatters."""
        scatters = any(row.moved and self.judges[row.name] not in LOW for row in found.outputs)
        return None if scatters else self.plain()

    def asks_for_float64(self, found: Verification) -> bool:
        """Return whether the reference's own roundings may be what failed: not where one side alone is infinite or NaN,
        nor in a quantized model, whose roundings are its own.
        """
        failed = [row for row in found.outputs if not row.passed]
        sound = all(row.compared and not row.nonfinite_mismatches and not row.moved for row in failed)
        return bool(failed) and sound and self.unquantized is None

    def in_float64(
        self, found: Verification, inputs: Arrays, got: Arrays, wanted: Arrays
    ) -> tuple[Verification, Arrays]:
        """Return what judges failed outputs by the reference in float64, and what the outputs are to be; what was
        found, where it does not run so, or is no such thing: roundings do not turn an output that far.
        """
        try:
            exact = run(inputs) if (run := self.double()) is not None else None
        except ModelError:
            exact = None
        if exact is None:
            return found, wanted
        ties = ties_of(self.reference, inputs, wanted, seed=self.seed)
        ours, theirs = (compare(each, exact, self.judges, ties) for each in (got, wanted))
        failed = {row.name for row in found.outputs if not row.passed}
        near = [
            row.compared and (row.cosine is None or row.cosine >= LEAST_COSINE)
            for row in theirs.outputs
            if row.name in failed
        ]
        if not all(near):
            return found, wanted
        judged = found.in_float64(ours, theirs)
        if judged.passed:
            self.precise = run
        return judged, {row.name: exact[row.name] if row.float64 else wanted[row.name] for row in judged.outputs}

    def by_moved_values(
        self, found: Verification, inputs: Arrays, got: Arrays, wanted: Arrays, best: Arrays
    ) -> Verification:
        """Return how outputs compare where each value of the reference, in float64 if it runs so, moves by some units
        of the last place; what was found, where they are further off, or that does not run.
        """
        by = max((TOLERANCES[judge].error for judge in self.judges.values() if judge in TOLERANCES), default=0.0) / _FEW
        try:
            exact = self.double_values(by) if by and best is not wanted else None
            run = exact or (self.values(by) if by else None)
            about = wanted if exact is None else best
            moved = moved_outputs([run(inputs) for _ in range(RUNS)], about) if run is not None else {}
        except ModelError:  # a value that is moved may be a size, so that the model stops
            return found
        ties = ties_of(self.reference, inputs, wanted, seed=self.seed)
        judged = compare(got, best, self.judges, ties, moved)
        return judged if judged.passed else found

    def small_of(self, found: Verification) -> dict[str, SmallSlices]:
        """Return what judges the small slices of outputs; those of a quantized model that moves are judged by that."""
        judges = {row.name: self.judges[row.name] for row in found.outputs if row.name in self.judges}
        moved = {row.name for row in found.outputs if row.moved and judges.get(row.name) not in LOW}
        kept = {name: judge for name, judge in judges.items() if judge in TOLERANCES and name not in moved}
        return {name: SmallSlices(TOLERANCES[judge].error, judge) for name, judge in kept.items()}

    def small_slices(self, session: Run, draws: Sequence[Arrays]) -> dict[str, tuple[float, str]]:
        """Return what was found of outputs that have slices in doubt, on the draws that they were compared on."""
        names = [name for name, each in self.small.items() if each.doubt()]
        try:
            found = self.settled(names, session, draws, self.reference) if names else {}
            if any(error > 1 for error, _ in found.values()) and (plain := self.plain()) is not None:
                found = self.settled(names, session, draws, plain)
            if any(error > 1 for error, _ in found.values()) and (exact := self.near(draws)) is not None:
                self.precise = exact  # the reference may have 0 for what is small, as of sigmoid(-31)
                found = self.settled(names, session, draws, self.reference)
        except ModelError:  # a value that is moved may be a size, so that the model stops
            return {}
        return found

    def near(self, draws: Sequence[Arrays]) -> Run | None:
        """Return the reference in float64, where it runs and the reference itself passes beside it."""
        exact = self.double() if self.unquantized is None else None
        pairs = ((self.reference(inputs), exact(inputs)) for inputs in draws) if exact is not None else ()
        return exact if all(compare(each, other, self.judges).passed for each, other in pairs) else None

    def settled(
        self, names: Sequence[str], session: Run, draws: Sequence[Arrays], reference: Run
    ) -> dict[str, tuple[float, str]]:
        """Return the worst small slice of each of these outputs beside moved runs of the reference; none where that
        cannot be moved.
        """
        slices = {name: SmallSlices(self.small[name].tolerance, self.small[name].judge) for name in names}
        runs = list(self.moved()) if not set(LOW) & set(self.judges.values()) else []
        most = max(each.tolerance for each in slices.values())
        exact = None if self.precise is None else self.double_values(most)
        if exact is not None:
            runs = [exact] * RUNS
        elif not runs and (values := self.values(most)) is not None:
            runs = [values] * RUNS
        for times in (1, MORE) if runs else ():
            for inputs in draws:
                got, wanted = session(inputs), reference(inputs)
                best = wanted if self.precise is None else self.precise(inputs)
                moved = [run(inputs) for run in runs * times]
                for name, each in slices.items():
                    each.add(got[name], best[name])
                    each.moved([run[name] for run in moved], (wanted if exact is None else best)[name])
            if all(each.worst()[0] <= 1 for each in slices.values()):
                break
        return {name: each.worst() for name, each in slices.items()} if runs else {}

    def by_moved_runs(
        self, inputs: Arrays, got: Arrays, wanted: Arrays, real: Arrays | None, ties: dict[str, Any]
    ) -> Verification | None:
        """Return how outputs compare by moved runs; None where there are none. Of a quantized model there are more of
        them before an output fails: the furthest of a few is no bound where rounding scatters.
        """
        runs = [run(inputs) for run in self.moved()]
        if not runs:
            return None
        is_low = bool(set(LOW) & set(self.judges.values()))

        def judged(runs: Sequence[Arrays]) -> tuple[Mapping[str, Moved], Verification]:
            moved, of_weights = moved_outputs(runs, wanted), is_low and real is None
            scatter = None if of_weights else scattered_outputs(runs, wanted, real, alike=not is_low)
            return moved, compare(got, wanted, self.judges, ties, moved, scatter)

        moved, found = judged(runs)
        self.noisy = any(each.cosine < LEAST_COSINE for each in moved.values())
        if not found.passed and not self.noisy and not is_low:
            _, found = judged([*runs, *(run(inputs) for _ in range(MORE) for run in self.moved())])
        for row in found.outputs:
            if row.moved and self.judges[row.name] not in LOW:
                self.slices[row.name].add(got[row.name], wanted[row.name], [run[row.name] for run in runs])
        return found

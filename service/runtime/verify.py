"""The comparison of an artifact with its reference: on which inputs, and what may be off by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from relaxc.service.errors import InputShape, ModelError, VerificationFailed
from relaxc.service.request import CompileOptions
from relaxc.service.rounding import Rounding
from relaxc.service.runtime.compare import EMPTY, judging_dtypes
from relaxc.service.runtime.dims import bind
from relaxc.service.runtime.inputs import Draw, drawn
from relaxc.service.runtime.judge import Judge
from relaxc.service.runtime.moved import Run
from relaxc.service.runtime.session import Session
from relaxc.service.runtime.small_slices import SHARE
from relaxc.service.runtime.steps import SteppedSession, in_steps, references_in_steps
from relaxc.service.runtime.taken import Taken, tells
from relaxc.service.runtime.verification import Verification
from relaxc.service.runtime.weak import Seen
from relaxc.service.signature import Signature

__all__ = ["References", "verify"]

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class References:
    """How the framework that a model came from runs it.

    `model`: as it is, or with rounded weights. `moved`: in several ways, for outputs that are judged as some
    dtypes, and for the dtypes of the artifact's weights. `unquantized`: without the rounding of activations, None where
    there is none. `ranges`: what inputs it was quantized for. `samples`: of its inputs, where somebody gave any.
    `values`: with each value that it computes moved by a share of itself, None where it does not run so. `plain`:
    without the framework's own rewrites, None where there are none. `double`: in float64 where it is in float32, None
    where it does not run so, and `double_values` so with each value moved.
    """

    model: Callable[[Rounding | None], Run]
    moved: Callable[[Iterable[str], Iterable[str]], Iterable[Run]]
    unquantized: Callable[[], Run | None]
    ranges: Callable[[], Mapping[str, tuple[float, float]]] = dict
    samples: Sequence[Mapping[str, Any]] = ()
    values: Callable[[float, Rounding | None], Run | None] = lambda by, rounding: None
    plain: Callable[[Rounding | None], Run | None] = lambda rounding: None
    double: Callable[[Rounding | None], Run | None] = lambda rounding: None
    double_values: Callable[[float, Rounding | None], Run | None] = lambda by, rounding: None


def verify(
    session: Session,
    signature: Signature,
    references: References,
    options: CompileOptions,
    progress: Callable[[int, int], None],
) -> Verification | str:
    """Compare on the inputs that are drawn for the signature; return the result, or why there is none. What keeps state
    is compared over several steps.

    Rounded weights are the reference's too, and how far the outputs are from those of the model's own is reported.
    Raise VerificationFailed unless the options say that it is not to be verified: then the failure is only recorded,
    and so is a reference that does not run, which is a ModelError otherwise.
    """
    held: Session | SteppedSession = session
    if signature.state:
        held, references = SteppedSession(session), references_in_steps(references, signature)
        signature = in_steps(signature)
    try:
        found = _compared(held, signature, references, options, progress)
    except ModelError as error:
        if options.verify:
            raise
        return f"the reference does not run it: {error.message}"
    if options.verify and not found.passed:
        raise VerificationFailed(f"the artifact's numbers are wrong: {found.reason}", report=found.to_dict())
    return found


def _compared(
    session: Session | SteppedSession,
    signature: Signature,
    references: References,
    options: CompileOptions,
    progress: Callable[[int, int], None],
) -> Verification:
    rounding = Rounding.of(session.manifest.passes)
    stored = session.manifest.weights.tensors
    judges = judging_dtypes(signature, precision=options.precision, weights=stored)
    judge = Judge(
        references.model(rounding),
        references.unquantized() if rounding is None else None,
        partial(references.moved, list(judges.values()), [spec.dtype for spec in stored]) if rounding is None else list,
        judges,
        options.seed,
        lambda tolerance: references.values(SHARE * tolerance, rounding),
        lambda: references.plain(rounding),
        cache(lambda: references.double(rounding)),
        cache(lambda tolerance: references.double_values(SHARE * tolerance, rounding)),
    )
    unrounded = references.model(None) if rounding is not None else None
    samples = [Draw(dict(sample), again=True) for sample in references.samples if _fits(signature, sample)]
    results, compared_on = [], []
    draws = drawn(signature, options.seed, references.ranges(), samples)
    seen, taking = Seen(), Taken(signature)

    def hold(inputs: Arrays, wanted: Arrays, *, again: bool) -> None:
        got = session(inputs)
        seen.add(wanted)
        compared = judge.compared(inputs, got, wanted)
        if again and judge.noisy:
            return
        results.append(compared if unrounded is None else compared.apart(got, unrounded(inputs)))
        compared_on.append(inputs)

    mute: list[tuple[Arrays, Arrays]] = []
    for done, draw in enumerate(draws):
        given = any(draw is each for each in samples)
        taken = [(draw.inputs, judge.reference(draw.inputs))] if given else taking.of(judge.reference, draw.inputs)
        for inputs, wanted in taken:
            if tells(wanted):
                hold(inputs, wanted, again=draw.again)
            elif not draw.again:
                mute.append((inputs, wanted))
        progress(done + 1, len(draws))
    for inputs, wanted in mute:
        if not results:
            hold(inputs, wanted, again=False)
        elif not (found := judge.compared(inputs, session(inputs), wanted)).passed and _denies(found):
            results.append(found)
    slices = {name: each.worst() for name, each in judge.slices.items()}
    found = Verification.worst(results).sliced(slices | judge.small_slices(session, compared_on))
    return found.weakened(seen.weak({name for name, judge in judges.items() if judge == EMPTY}))


def _fits(signature: Signature, sample: Mapping[str, Any]) -> bool:
    """Whether a sample is of a shape that the artifact takes: its sizes may be fixed, those of the samples others."""
    try:
        bind(signature, [sample[spec.name].shape for spec in signature.inputs])
    except (InputShape, KeyError):
        return False
    return True


def _denies(found: Verification) -> bool:
    """Whether an output of floats is wrong, where another is NaN throughout: integers that are made of NaN say nothing,
    and no more does one that is NaN on both sides.
    """
    return any(not row.passed and row.dtype.startswith(("float", "bfloat")) for row in found.outputs)

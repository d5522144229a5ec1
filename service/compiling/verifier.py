"""The comparison of an artifact with the model that it was compiled from: which references there are, and of what."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from relaxc.service.compiling.ahead import Ahead
from relaxc.service.compiling.calibration import Samples, quantized, samples_of
from relaxc.service.errors import InvalidShape
from relaxc.service.request import CompileRequest
from relaxc.service.runtime.sizes import choose_sizes
from relaxc.service.signature import Signature

if TYPE_CHECKING:
    from relaxc.service.frontend.model import Reference
    from relaxc.service.rounding import Rounding
    from relaxc.service.runtime.session import Session
    from relaxc.service.runtime.verification import Verification

__all__ = ["verify"]


_GIVE_SIZES = "Give sizes by `--shape`, if calls can have any; `--no-verify` compiles the model without a comparison."


def verify(
    request: CompileRequest,
    signature: Signature,
    load: Callable[[], Session],
    progress: Callable[[int, int], None],
    samples: Samples = (),
    ahead: Ahead | None = None,
) -> Verification | str:
    """Compare an artifact with its reference (`runtime.verify`), on drawn inputs and on `samples`.

    `ahead` has run the reference of this request already. Return the result, or why there is none. Raise InvalidShape
    where no sizes are found of which the signature's conditions hold, unless the request does without a verdict.
    """
    from relaxc.service import frontend
    from relaxc.service.lowering.target import missing_features
    from relaxc.service.runtime.verify import References
    from relaxc.service.runtime.verify import verify as compared

    if lacking := missing_features(request.target):
        return f"this machine cannot run it: {'; '.join(lacking)}"
    try:
        choose_sizes(signature)
    except InvalidShape as error:
        if not request.options.verify:
            return error.message
        raise InvalidShape(f"it cannot be verified: {error.message}", remedy=_GIVE_SIZES) from None
    if (given := request.options.calibration) is not None:
        if not (request.model.path.parent / given.samples).is_file():
            return f"the samples that it was calibrated with, {given.samples}, are not beside the model"
        with tempfile.TemporaryDirectory() as folder:
            return verify(quantized(request, Path(folder))[0], signature, load, progress, samples_of(request))
    model, shapes = request.model, dict(request.options.shapes)

    def reference(rounding: Rounding | None) -> Reference:
        make = partial(frontend.reference, model.path, model.format, threads=1, shapes=shapes, rounding=rounding)
        return make() if ahead is None or rounding is not None else ahead.reference(make)

    def unquantized() -> Reference | None:
        make = partial(frontend.unquantized_reference, model.path, model.format, threads=1, shapes=shapes)
        return make() if ahead is None else ahead.unquantized(make)

    references = References(
        reference,
        _moved_references(request, ahead),
        unquantized,
        lambda: frontend.input_ranges(model.path, model.format),
        samples,
        _values_moved(request),
        lambda rounding: frontend.plain_reference(model.path, model.format, shapes=shapes, rounding=rounding),
        lambda rounding: frontend.double_reference(model.path, model.format, shapes=shapes, rounding=rounding),
        lambda by, rounding: frontend.double_reference(
            model.path, model.format, shapes=shapes, rounding=rounding, moves=(request.options.seed, by)
        ),
    )
    return compared(load(), signature, references, request.options, progress)


def _moved_references(
    request: CompileRequest, ahead: Ahead | None
) -> Callable[[Iterable[str], Iterable[str]], Iterator[Reference]]:
    """What gives the reference with its quantizations moved, in several ways; of a model that has none, and whose
    outputs are judged as 16 bits, with its weights moved. It takes those dtypes, and those of the artifact's weights.
    """
    from relaxc.service import frontend
    from relaxc.service.frontend import Move
    from relaxc.service.runtime.moved import FIRST_RUNS, RUNS, quantizations_move_by, rounds_by

    model, shapes, seed = request.model, dict(request.options.shapes), request.options.seed
    build = partial(frontend.moved_reference, model.path, model.format, shapes=shapes)

    @cache
    def quantizations(by: float) -> Reference | None:
        make = partial(build, Move.QUANTIZATIONS, by=by)
        return make(seed=seed) if ahead is None else ahead.moved(lambda each: make(seed=each))

    def moved(judged: Iterable[str], stored: Iterable[str]) -> Iterator[Reference]:
        rounds = rounds_by(judged)
        found = quantizations(by=quantizations_move_by(request.target.kind, stored))
        if found is not None:
            yield from [found] * FIRST_RUNS  # each run moves them anew
            return
        for each in range(seed, seed + RUNS) if rounds else ():
            weights = build(Move.WEIGHTS, seed=each, by=rounds)
            if weights is None:
                return
            yield weights

    return moved


def _values_moved(request: CompileRequest) -> Callable[[float, Rounding | None], Reference | None]:
    """What gives the reference with each value that it computes moved."""
    from relaxc.service import frontend
    from relaxc.service.frontend import Move

    model, shapes, seed = request.model, dict(request.options.shapes), request.options.seed

    @cache
    def moved(by: float, rounding: Rounding | None) -> Reference | None:
        return frontend.moved_reference(
            model.path, model.format, Move.VALUES, seed=seed, by=by, shapes=shapes, rounding=rounding
        )

    return moved

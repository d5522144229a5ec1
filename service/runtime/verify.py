"""The comparison of an artifact with its reference: on which inputs, and what may be off by how much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.errors import ModelError, VerificationFailed
from service.request import CompileOptions
from service.rounding import Rounding
from service.runtime.compare import compare, judging_dtypes
from service.runtime.inputs import drawn
from service.runtime.moved import Run, distances, moved_outputs
from service.runtime.session import Session
from service.runtime.ties import ties_of
from service.runtime.tolerances import Apart
from service.runtime.verification import Verification
from service.signature import Signature

__all__ = ["References", "verify"]


@dataclass(frozen=True)
class References:
    """How the framework that a model came from runs it.

    `model`: as it is, or with rounded weights. `moved`: in several ways, for outputs that are judged as some
    dtypes, and for the dtypes of the artifact's weights. `unquantized`: without the rounding of activations, None where
    there is none.
    """

    model: Callable[[Rounding | None], Run]
    moved: Callable[[Iterable[str], Iterable[str]], Iterable[Run]]
    unquantized: Callable[[], Run | None]


def verify(
    session: Session,
    signature: Signature,
    references: References,
    options: CompileOptions,
    progress: Callable[[int, int], None],
) -> Verification | str:
    """Compare on the inputs that are drawn for the signature; return the result, or why there is none.

    Rounded weights are the reference's too, and how far the outputs are from those of the model's own is reported.
    Raise VerificationFailed unless the options say that it is not to be verified: then the failure is only recorded,
    and so is a reference that does not run, which is a ModelError otherwise.
    """
    try:
        found = _compared(session, signature, references, options, progress)
    except ModelError as error:
        if options.verify:
            raise
        return f"the reference does not run it: {error.message}"
    if options.verify and not found.passed:
        raise VerificationFailed(f"the artifact's numbers are wrong: {found.reason}", report=found.to_dict())
    return found


def _compared(
    session: Session,
    signature: Signature,
    references: References,
    options: CompileOptions,
    progress: Callable[[int, int], None],
) -> Verification:
    rounding = Rounding.of(session.manifest.passes)
    reference = references.model(rounding)
    unrounded = references.model(None) if rounding is not None else None
    unquantized = references.unquantized() if rounding is None else None
    stored = session.manifest.weights.tensors
    dtypes = judging_dtypes(signature, precision=options.precision, weights=stored)
    results, draws = [], drawn(signature, options.seed)
    for done, draw in enumerate(draws):
        inputs = draw.inputs
        wanted = reference(inputs)
        if draw.again and not _tells(wanted):
            continue
        got = session(inputs)
        real = unquantized(inputs) if unquantized is not None else None
        compared = compare(got, wanted, dtypes)
        if not compared.passed:
            ties = ties_of(reference, inputs, wanted, seed=options.seed)
            compared = compare(got, wanted, dtypes, ties)
        if not compared.passed and rounding is None:
            others = references.moved(dtypes.values(), [spec.dtype for spec in stored])
            moved = moved_outputs(others, inputs, wanted, real)
            compared = compare(got, wanted, dtypes, ties, moved, _apart(got, wanted, real)) if moved else compared
        if unrounded is not None:
            compared = compared.apart(got, unrounded(inputs))
        if real is not None:
            compared = compared.quantized(got, wanted, real)
        results.append(compared)
        progress(done + 1, len(draws))
    return Verification.worst(results)


def _apart(got: Mapping[str, Any], want: Mapping[str, Any], real: Mapping[str, Any] | None) -> dict[str, Apart] | None:
    if real is None:
        return None
    ours, theirs = distances(got, real), distances(want, real)
    return {name: Apart(ours[name], far) for name, far in theirs.items() if name in ours}


def _tells(wanted: Mapping[str, Any]) -> bool:
    """Whether each output has numbers: an acos has none where all inputs are over 1."""
    return not any(value.dtype.kind in "fV" and value.size and np.isnan(value).all() for value in wanted.values())

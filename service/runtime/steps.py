"""A program that keeps state, compared over several steps from its first on: as one that takes them all at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from relaxc.service.runtime.moved import Run
from relaxc.service.runtime.session import Session
from relaxc.service.runtime.tensors import numpy_dtype
from relaxc.service.signature import Signature, TensorSpec

if TYPE_CHECKING:
    from relaxc.service.runtime.verify import References

__all__ = ["STEPS", "Feedback", "SteppedSession", "Stepping", "in_steps", "references_in_steps"]

STEPS = 3
"""What the first writes the second reads, and the third what both have."""

_POSITION = re.compile(r"(^|[_.])pos(itions?)?([_.]ids)?$")

Arrays = Mapping[str, Any]


def in_steps(signature: Signature) -> Signature:
    """Return the signature of all steps: `x` of the second is `x@1`. Of the state it has the dtypes, to judge by."""

    def each(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(spec, name=f"{spec.name}@{step}") for step in range(STEPS) for spec in specs)

    return replace(signature, inputs=each(signature.inputs), outputs=each(signature.outputs))


@dataclass
class Stepping:
    """All steps of a run that keeps state, `reset` before the first.

    Integers that the model calls positions are those of the steps, one behind the other.
    """

    run: Run
    reset: Callable[[], None]
    signature: Signature

    def __call__(self, inputs: Arrays) -> dict[str, Any]:
        """Return the outputs of all steps by name and step."""
        self.reset()
        found: dict[str, Any] = {}
        for step in range(STEPS):
            given = {
                spec.name: self._given(spec, inputs[f"{spec.name}@{step}"], step) for spec in self.signature.inputs
            }
            found |= {f"{name}@{step}": value for name, value in self.run(given).items()}
        return found

    def _given(self, spec: TensorSpec, value: Any, step: int) -> Any:
        if not spec.dtype.startswith("int") or not _POSITION.search(spec.name.lower()):
            return value
        length = value.shape[-1] if value.ndim else 1
        places = (step * length + np.arange(length)).astype(value.dtype)
        return np.ascontiguousarray(np.broadcast_to(places if value.ndim else places[0], value.shape))


class Feedback:
    """A run that takes the state as inputs and gives the next one as the outputs that are not the signature's, in the
    same order.
    """

    def __init__(self, run: Run, signature: Signature) -> None:
        self._run, self._signature = run, signature
        self.reset()

    def reset(self) -> None:
        """Have a state of zeros."""
        self._state: dict[str, Any] = {
            spec.name: np.zeros([int(dim) for dim in spec.shape], numpy_dtype(spec.dtype)).view(
                numpy_dtype(spec.codes or spec.dtype)
            )
            for spec in self._signature.state
        }

    def __call__(self, inputs: Arrays) -> dict[str, Any]:
        """Return the outputs of a step."""
        found = dict(self._run({**inputs, **self._state}))
        outputs = {spec.name: found.pop(spec.name) for spec in self._signature.outputs}
        self._state = dict(zip(self._state, found.values(), strict=True))
        return outputs


class SteppedSession(Stepping):
    """As much of a session as a comparison needs."""

    def __init__(self, session: Session) -> None:
        assert session.state is not None
        super().__init__(session, session.state.reset, session.signature)
        self.manifest = session.manifest


def references_in_steps(references: References, signature: Signature) -> References:
    """Return references that run all steps: each of these has `reset`, or takes and gives the state."""

    def one(run: Any) -> Any:
        if run is None:
            return None
        held = run if hasattr(run, "reset") else Feedback(run, signature)
        return Stepping(held, held.reset, signature)

    return replace(
        references,
        model=lambda rounding: one(references.model(rounding)),
        moved=lambda judged, stored: map(one, references.moved(judged, stored)),
        unquantized=lambda: one(references.unquantized()),
        ranges=lambda: {
            f"{name}@{step}": found for name, found in references.ranges().items() for step in range(STEPS)
        },
        values=lambda by, rounding: one(references.values(by, rounding)),
        plain=lambda rounding: one(references.plain(rounding)),
        double=lambda rounding: one(references.double(rounding)),
        double_values=lambda by, rounding: one(references.double_values(by, rounding)),
    )

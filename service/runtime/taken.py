"""Inputs that a reference makes something of, in place of those that it stops at or makes nothing of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from relaxc.service.errors import ModelError
from relaxc.service.runtime.inputs import other_operands
from relaxc.service.runtime.moved import Run
from relaxc.service.signature import Signature

__all__ = ["Taken", "tells"]

Arrays = Mapping[str, Any]


class Taken:
    """What is compared in the place of each draw.

    Others that helped an earlier draw are tried first and always. After a draw that none helped half as many are tried
    as before, so that an output without numbers costs twice the runs of one draw, however many draws there are.
    """

    def __init__(self, signature: Signature) -> None:
        self._ranks = {spec.name: len(spec.shape) for spec in signature.outputs}
        self._helped: list[int] = []
        self._most: int | None = None

    def of(self, reference: Run, drawn: Arrays) -> list[tuple[Arrays, Arrays]]:
        """Return inputs and what the reference makes of them: those drawn, or others where it stops at them, makes
        nothing, or outputs with other axes than all calls have; both, where it makes NaN of those drawn. Raise its
        ModelError where it stops at all.
        """
        empty: tuple[Arrays, Arrays] | None = None
        nan: list[tuple[Arrays, Arrays]] = []
        stopped: ModelError | None = None
        for inputs in self._tried(drawn):
            try:
                wanted = reference(inputs)
            except ModelError as error:
                stopped = stopped or error
                continue
            fits = all(array.ndim == self._ranks.get(name, array.ndim) for name, array in wanted.items())
            if fits and tells(wanted) and any(array.size for array in wanted.values()):
                return [*nan, (inputs, wanted)]
            if fits and inputs is drawn and not tells(wanted):
                nan.append((inputs, wanted))
            empty = empty or (inputs, wanted)
        if empty is None:
            raise stopped or AssertionError
        return [empty]

    def _tried(self, drawn: Arrays) -> Iterator[Arrays]:
        """The draw, then others; whoever stops reading has been helped by the last."""
        yield drawn
        others = list(other_operands(drawn))
        order = [*self._helped, *(at for at in range(len(others)) if at not in self._helped)]
        most = len(others) if self._most is None else self._most
        for at in order[: max(most, len(self._helped))]:
            before, self._helped = self._helped, [at, *(each for each in self._helped if each != at)]
            yield others[at]
            self._helped = before
        self._most = most // 2


def tells(wanted: Mapping[str, Any]) -> bool:
    """Return whether each output has numbers: an acos has none where all inputs are over 1."""
    return not any(value.dtype.kind in "fV" and value.size and np.isnan(value).all() for value in wanted.values())

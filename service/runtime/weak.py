"""Why a comparison that passed tells little: outputs that had nothing to compare, or that no input changed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

__all__ = ["Seen"]


class Seen:
    """What the outputs of the reference were, over all inputs that were drawn."""

    def __init__(self) -> None:
        self._compared: dict[str, bool] = {}
        self._values: defaultdict[str, set[bytes]] = defaultdict(set)
        self._levels: defaultdict[str, set[float]] = defaultdict(set)
        self._runs = 0

    def add(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Take the outputs of one more run."""
        self._runs += 1
        for name, array in wanted.items():
            is_float = array.dtype.kind in "fV"
            says = array.size > 0 and not (is_float and bool(np.isnan(array).all()))
            self._compared[name] = self._compared.get(name, False) or says
            if not (is_float and says):
                continue
            self._values[name].add(hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest())
            numbers = array.astype(np.float32) if array.dtype.kind == "V" else array
            low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
            self._levels[name] |= {low, high} if array.size > 1 else {low, low + 1}

    def weak(self, but: Collection[str] = ()) -> dict[str, str]:
        """Return output → why its check is weak, `but` for those that have no elements in any call."""
        found = {}
        for name, says in self._compared.items():
            if name in but:
                continue
            if not says:
                found[name] = "it was empty or NaN for all inputs that were drawn, so that only its shape was compared"
            elif len(levels := self._levels[name]) == 1:
                found[name] = f"every value was {next(iter(levels)):g} for all inputs that were drawn"
            elif self._runs > 1 and len(self._values[name]) == 1:
                found[name] = "it was the same for all inputs that were drawn"
        return found

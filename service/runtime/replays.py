"""The replays of a session by the shapes of its inputs, and the checks of a call in constant time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tvm_ffi

from relaxc.service.runtime.replay import Replay
from relaxc.service.runtime.tensors import Array
from relaxc.service.signature import Signature

__all__ = ["Replays", "Shapes"]

Shapes = tuple[tuple[int, ...], ...]
"""Of all inputs, in their order."""

Record = Callable[[list[tvm_ffi.Tensor]], Replay | None]
"""Makes a replay of a run on these inputs, or None."""

_MAX_SHAPES = 16
_MAX_ELEMENTS = 16 << 10
_MAX_DECLINED = 4


class Replays:
    """Finds the replay that fits a call. It knows shapes that went through all checks: the few that were used last."""

    def __init__(self, signature: Signature, *, any_fits: bool) -> None:
        """With `any_fits` False there are none."""
        self._any_fits = any_fits
        self._found: dict[Shapes, Replay | Literal[False] | None] = {}
        """None for what came once, False for what cannot be replayed."""
        self._used: dict[Shapes, int] = {}
        """By the same: when it was used last. Calls write it without the lock, so `_found` keeps its own order."""
        self._time = 0
        self._last: Replay | None = None
        self._declined = 0
        self._specs = [(spec.name, _dtype(spec.dtype)) for spec in signature.inputs]

    def find(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Replay, list[Array]] | None:
        """Return a replay and the inputs in order, or None where these need all checks.

        They are numpy arrays, by these names or all in order, of the dtypes, and of shapes that were checked.
        """
        if not self._found:
            return None
        given: Sequence[Any] = args
        if len(args) == 1 and not named and type(args[0]) is dict:
            given, named = (), args[0]
        if given:
            if named or len(given) != len(self._specs):
                return None
        elif len(named) != len(self._specs):
            return None
        values, shapes = [], []
        for place, (name, dtype) in enumerate(self._specs):
            value = given[place] if given else named.get(name)
            if type(value) is not np.ndarray:
                return None
            if value.dtype is not dtype and value.dtype != dtype:  # what was unpickled has one of its own
                return None
            values.append(value)
            shapes.append(value.shape)
        key = tuple(shapes)
        replay = self._found.get(key)
        if not replay:
            return None
        if replay is not self._last:
            self._use(key, replay)
        return replay, values

    def of(self, tensors: list[tvm_ffi.Tensor]) -> Replay | None:
        """Return the replay for inputs that all checks let through, if there is one."""
        if not self._found:
            return None
        key = tuple([tensor.shape for tensor in tensors])
        replay = self._found.get(key) or None
        if replay:
            self._use(key, replay)
        return replay

    def _use(self, shapes: Shapes, replay: Replay | None) -> None:
        self._time += 1
        self._used[shapes], self._last = self._time, replay

    def note(self, tensors: list[tvm_ffi.Tensor], record: Record) -> None:
        """Record a call whose inputs, which all checks let through, have shapes that come again."""
        if not self._any_fits or not tensors:
            return
        shapes = tuple([tensor.shape for tensor in tensors])
        if any(map(_is_unfit, shapes)):
            return
        if shapes not in self._found:
            if len(self._found) >= _MAX_SHAPES:
                oldest = min(self._found, key=lambda each: self._used.get(each, 0))
                del self._found[oldest]
                self._used = {each: self._used.get(each, 0) for each in self._found}
            self._found[shapes] = None
        elif self._found[shapes] is None:
            self._found[shapes] = record(tensors) or False
            self._declined += self._found[shapes] is False
        self._use(shapes, None)
        self._any_fits = self._declined < _MAX_DECLINED


def _dtype(name: str) -> Any:
    """The dtype that numpy's arrays share; None for bfloat16, which needs all checks where ml_dtypes is not there."""
    return None if name == "bfloat16" else np.dtype(name)


def _is_unfit(shape: tuple[int, ...]) -> bool:
    return not 0 < math.prod(shape) <= _MAX_ELEMENTS

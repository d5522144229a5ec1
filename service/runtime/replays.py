"""The replays of a session by the shapes of its inputs, and the checks of a call in constant time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import tvm_ffi

from service.runtime.replay import Replay
from service.signature import Signature

__all__ = ["Replays", "Shapes"]

Shapes = tuple[tuple[int, ...], ...]
"""Of all inputs, in their order."""

Record = Callable[[list[tvm_ffi.Tensor]], Replay | None]
"""Makes a replay of a run on these inputs, or None."""

_MAX_SHAPES = 16
_MAX_ELEMENTS = 16 << 10
_MAX_DECLINED = 4


class Replays:
    """Finds the replay that fits a call. It knows shapes that went through all checks, and has the last few alone."""

    def __init__(self, signature: Signature, *, any_fits: bool) -> None:
        """With `any_fits` False there are none."""
        self._names = tuple(spec.name for spec in signature.inputs)
        self._known = frozenset(self._names)
        self._any_fits = any_fits
        self._found: dict[Shapes, Replay | Literal[False] | None] = {}
        """None for what came once, False for what cannot be replayed."""
        self._declined = 0
        self._dtypes = [_dtype(spec.dtype) for spec in signature.inputs]

    def find(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Replay, tuple[Any, ...]] | None:
        """Return a replay and the inputs in order, or None where these need all checks.

        They are numpy arrays, by these names or all in order, of the dtypes, and of shapes that were checked.
        """
        values: tuple[Any, ...] = args
        if len(args) == 1 and not named and type(args[0]) is dict:
            values, named = (), args[0]
        if not values:
            if named.keys() != self._known:
                return None
            values = tuple([named[name] for name in self._names])
        elif named or len(values) != len(self._names):
            return None
        for value, dtype in zip(values, self._dtypes):  # noqa: B905  # as many
            if type(value) is not np.ndarray or value.dtype is not dtype:
                return None
        replay = self._found.get(tuple([value.shape for value in values]))
        return (replay, values) if replay else None

    def note(self, tensors: list[tvm_ffi.Tensor], record: Record) -> None:
        """Record a call whose inputs, which all checks let through, have shapes that come again."""
        if not self._any_fits or not tensors:
            return
        shapes = tuple([tensor.shape for tensor in tensors])
        if any(map(_is_unfit, shapes)):
            return
        if shapes not in self._found:
            if len(self._found) >= _MAX_SHAPES:
                del self._found[next(iter(self._found))]
            self._found[shapes] = None
        elif self._found[shapes] is None:
            self._found[shapes] = record(tensors) or False
            self._declined += self._found[shapes] is False
            if self._declined == _MAX_DECLINED:
                self._any_fits = False


def _dtype(name: str) -> Any:
    """The dtype that numpy's arrays share; None for bfloat16, which needs all checks where ml_dtypes is not there."""
    return None if name == "bfloat16" else np.dtype(name)


def _is_unfit(shape: tuple[int, ...]) -> bool:
    return not 0 < math.prod(shape) <= _MAX_ELEMENTS

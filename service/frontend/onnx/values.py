"""Values known before the run: small constants and shapes, with symbolic sizes in them, computed while importing.

A graph computes its shapes with nodes (Shape → Gather → Concat → Reshape). Here these are evaluated on arrays whose
elements are numbers or TVM expressions, so that Reshape sees `[batch, 12, seq, 64]` and nothing of it is left to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx import scope as onnx_scope

__all__ = ["ENDS", "MAX_FOLDED", "Coded", "Known", "Undecided", "known_ints", "slice_of", "tensor_of"]

# Larger results are left to the constant folding pass, which compiles what it folds.
MAX_FOLDED = 4096


class Undecided(Exception):
    """A comparison of symbolic sizes that holds for some sizes only."""


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor known at import: an array of numbers, or for integers an object array of ints and TVM expressions."""

    array: Any
    dtype: str

    @property
    def symbolic(self) -> bool:
        """Whether some element is an expression over symbolic sizes."""
        return bool(self.array.dtype == object)


@dataclass(frozen=True, eq=False)
class Coded:
    """A tensor of an element type that TVM lacks: its codes, a byte each (`relaxc.service.codes`)."""

    codes: Any
    dtype: str

    @property
    def ty(self) -> Any:
        """The type of the codes, whose shape is the tensor's."""
        return self.codes.ty


def known_ints(
    values: list[Any], scope: onnx_scope.Scope, dtype: str = "int64", shape: tuple[int, ...] | None = None
) -> Known:
    """Return sizes as a Known of rank one or of `shape`: numbers where all are numbers."""
    import numpy as np

    simple = [onnx_dims.simplify(value, scope) for value in values]
    shape = (len(simple),) if shape is None else shape
    if all(isinstance(value, int) for value in simple):
        return Known(np.array(simple, dtype).reshape(shape), dtype)
    array = np.empty(len(simple), object)
    for place, value in enumerate(simple):
        array[place] = value
    return Known(array.reshape(shape), dtype)


ENDS = (2**31 - 1, 2**63 - 1)
"""The ends of a Slice that are an axis's last, whichever way it walks."""


def slice_of(start: int, end: int, step: int, size: int) -> slice:
    """Return the places of a Slice along an axis of `size`.

    Walking backwards, ONNX takes a start before the first element for the first, and has an end before it past it.
    """
    if step > 0:
        return slice(start, end, step)
    return slice(max(start, -size), None if end < -size or end in ENDS else end, step)


def tensor_of(array: Any) -> Any:
    """Return a copy of `array` as TVM's tensor."""
    import numpy as np
    from tvm import runtime

    from relaxc.service.process.copying import copy_into

    if array.dtype.isbuiltin != 1:  # of a dtype that numpy has not itself
        return runtime.tensor(array)
    tensor = runtime.empty(array.shape, str(array.dtype))
    copy_into(np.from_dlpack(tensor), array)
    return tensor

"""Random numbers for the elements of many tensors, cut out of one list that is drawn anew in each run.

ONNX Runtime draws five nanoseconds for a number: of all that BERT-base quantizes that is as long as its products take.
Tensors of one shape share a few cuts, as a session takes the longer to make the more nodes there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from relaxc.service.frontend.onnx.file import bodies

__all__ = ["Noise", "dtypes_of", "shapes_of"]

_LIST, _SMALL = "relaxc_noise", "relaxc_noise_small"
_CUTS = 16
"""How many cuts tensors of one shape have by turns, so that neighbours differ."""
_APART = 40503
"""How far apart in the list they begin: no row, column or channel is so long."""
_MOST = 1 << 24
"""Elements of a tensor for which there is a list: 64 MiB."""


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the tensors of `model`'s graph whose shapes follow from those of its inputs, whatever it says of them."""
    import onnx

    bare = type(model)()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    found = {}
    for value in onnx.shape_inference.infer_shapes(bare).graph.value_info:
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            found[value.name] = tuple(dim.dim_value for dim in kind.shape.dim)
    return found


def dtypes_of(model: Any) -> dict[str, int]:
    """Return the element types (onnx.TensorProto.DataType) of all values, as far as they follow from the inputs'."""
    import onnx

    typed = onnx.shape_inference.infer_shapes(model)
    found: dict[str, int] = {}
    for body in bodies(typed):
        found |= {tensor.name: tensor.data_type for tensor in getattr(body, "initializer", ())}
        for values in ("input", "value_info", "output"):
            for value in getattr(body, values, ()):
                if not isinstance(value, str):
                    found[value.name] = value.type.tensor_type.elem_type
    return found


class Noise:
    """The numbers of a model with these `shapes`, from -`by` to `by`, as `seed` decides, and `small` as a tensor."""

    def __init__(
        self, shapes: Mapping[str, Sequence[int]] | None = None, by: float = 0.0, seed: float = 0.0, small: float = 1.0
    ) -> None:
        from onnx import TensorProto, helper

        self.nodes: list[Any] = []
        self.small = _SMALL
        self.initializers: list[Any] = [helper.make_tensor(_SMALL, TensorProto.FLOAT, [], [small])]
        self._shapes, self._by, self._seed = shapes or {}, by, seed
        self._made: dict[tuple[tuple[int, ...], int], str] = {}
        self._longest = 0

    def of(self, name: str, index: int) -> str | None:
        """Return what has numbers for tensor `name`, the model's `index`-th; None where its shape is not known."""
        shape = self._shapes.get(name)
        if shape is None or not 0 < math.prod(shape) <= _MOST:
            return None
        key = tuple(shape), index % _CUTS
        if key not in self._made:
            self._made[key] = self._cut(*key)
        return self._made[key]

    def first(self) -> list[Any]:
        """Return the nodes that have to be in front of all others."""
        from onnx import helper

        if not self._made:
            return []
        attributes = {"shape": [self._longest], "low": -self._by, "high": self._by, "seed": self._seed}
        return [helper.make_node("RandomUniform", [], [_LIST], **attributes), *self.nodes]

    def _cut(self, shape: tuple[int, ...], turn: int) -> str:
        from onnx import helper

        start, size, name = turn * _APART, math.prod(shape), f"{_LIST}_{len(self._made)}"
        self._longest = max(self._longest, start + size)
        ends = self._numbers(f"{name}_from", [start]), self._numbers(f"{name}_to", [start + size])
        self.nodes.append(helper.make_node("Slice", [_LIST, *ends], [f"{name}_flat"]))
        self.nodes.append(helper.make_node("Reshape", [f"{name}_flat", self._numbers(f"{name}_shape", shape)], [name]))
        return name

    def _numbers(self, name: str, values: Sequence[int]) -> str:
        from onnx import TensorProto, helper

        self.initializers.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
        return name

"""What a frontend gives: an imported model, a description of a file, and a reference to compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from relaxc.service.request import ModelFormat
from relaxc.service.signature import Dim, JsonScalar, Signature

__all__ = ["ImportedModel", "ModelInfo", "Move", "Reference", "Shapes", "Unsupported"]

Shapes = Mapping[str, tuple[Dim, ...]]
"""The shape that the user gave to an input, by its name: sizes, or names of symbolic dims."""

NODES_NAMED = 20
"""A model with a thousand equal unsupported nodes is described by its count and this many names."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model as Relax.

    `module` is a `tvm.IRModule` whose `main` follows the convention of docs/stages.md; `op_counts` is the
    number of nodes of each operator in the file, before the import.
    """

    module: Any
    signature: Signature
    op_counts: dict[str, int]
    initial: dict[str, Any] = field(default_factory=dict)
    """The arrays that the signature's state begins with, where it is not 0."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The nodes of one operator that cannot be imported, and why; `nodes` has the first of their names."""

    count: int
    nodes: tuple[str, ...]
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the nodes as JSON values."""
        return {"count": self.count, "nodes": list(self.nodes), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model file says of itself; nothing was compiled to learn it.

    `details` are facts of the format: producer, opsets, number of parameters, bytes of weights.
    """

    format: ModelFormat
    signature: Signature
    op_counts: dict[str, int]
    unsupported: dict[str, Unsupported] = field(default_factory=dict)
    details: dict[str, JsonScalar] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as JSON values."""
        return {
            "format": self.format.value,
            "signature": self.signature.to_dict(),
            "op_counts": dict(self.op_counts),
            "unsupported": {op: nodes.to_dict() for op, nodes in self.unsupported.items()},
            "details": dict(self.details),
        }


class Move(Enum):
    """What of a model is moved, to see how far its outputs move."""

    QUANTIZATIONS = auto()
    """What each rounds is off by up to `by` of itself and of its tensor's mean size: what lies so near a boundary may
    fall otherwise. Those whose operands every right implementation has to the bit are as they were."""
    WEIGHTS = auto()
    """Each is times a number of its own from 1 - `by` to 1 + `by`."""
    VALUES = auto()
    """Weights, floating inputs, and what each operator computes in floats, anew in each run: Monte Carlo arithmetic
    (Parker, 1997), which tells what rounding alone does to a result that is what is left of larger values."""


class Reference(Protocol):
    """Runs the model in the framework that it came from, on arrays by name."""

    def __call__(self, inputs: Mapping[str, Any], /) -> dict[str, Any]:
        """The outputs by name, in the model's order. bfloat16 is `ml_dtypes.bfloat16`."""
        ...

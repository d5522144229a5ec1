"""What a model takes and gives: names, dtypes and shapes, as frozen values that check themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relaxc.service.codes import CARRIER, FORMATS
from relaxc.service.errors import InvalidOption, InvalidShape, UnsupportedModel

__all__ = ["MAX_DIM_CHARS", "STATE", "Condition", "Dim", "DimBounds", "JsonScalar", "Signature", "TensorSpec"]

Dim = int | str
"""A size, or a symbolic dim: a name (`batch`) or an integer expression over names (`2*seq + 1`)."""

MAX_DIM_CHARS = 500
"""Of a symbolic dim, and of each side of a condition: readers refuse longer ones."""

STATE = "num_state"
"""The attribute of `main` with the number of its last parameters, before the weights, that are state."""

JsonScalar = str | int | float | bool | None

_DTYPES = frozenset(
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ]
)
_WEIGHTS = frozenset(["float8_e4m3fn"])
"""What weights may have beside: a caller has no arrays of it."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a signature: `shape` holds sizes and symbolic dims; a scalar has the empty shape.

    What is no dtype of numpy's travels as its codes (`relaxc.service.codes`): `codes` names it, and `dtype` is `uint8`.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    codes: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidOption("a tensor needs a name")
        if self.dtype not in _DTYPES | _WEIGHTS:
            raise InvalidOption(f"tensor {self.name!r} has dtype {self.dtype!r}, which is not one of {sorted(_DTYPES)}")
        if self.codes is not None and (self.codes not in FORMATS or self.dtype != CARRIER):
            raise InvalidOption(f"tensor {self.name!r} has codes of {self.codes!r:.80} as {self.dtype}")
        for dim in self.shape:
            if isinstance(dim, int) and dim < 0:
                raise InvalidShape(f"tensor {self.name!r} has the negative size {dim}", name=self.name)

    def __str__(self) -> str:
        return f"{self.name}: {self.codes or self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class DimBounds:
    """The sizes a symbolic dim may take, both ends included; `maximum` None is unbounded."""

    minimum: int = 1
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum < 0 or (self.maximum is not None and self.maximum < self.minimum):
            raise InvalidShape(f"bounds {self.minimum}..{self.maximum} hold no size")

    def __contains__(self, size: int) -> bool:
        return self.minimum <= size and (self.maximum is None or size <= self.maximum)

    def __str__(self) -> str:
        return f"{self.minimum}..{'' if self.maximum is None else self.maximum}"


@dataclass(frozen=True, slots=True)
class Condition:
    """What the sizes of a call must satisfy for an operator to be defined: `n % 2 == 0`, `n >= 3`.

    `text` has two dims with `==`, `!=`, `>=`, `<=`, `>` or `<` between them; `why` names who needs it, and what of.
    `when` is an input of one integer, `==` or `!=`, and a number, where it must hold of no other calls.
    """

    text: str
    why: str
    when: tuple[str, str, int] | None = None

    def applies(self, values: Mapping[str, int]) -> bool:
        """Return whether it must hold of a call whose inputs of one integer have these values."""
        if self.when is None:
            return True
        name, relation, number = self.when
        return name in values and (values[name] == number) == (relation == "==")


@dataclass(frozen=True, slots=True)
class Signature:
    """The names, dtypes and shapes of a model's inputs and outputs, in the model's order.

    `state` is what the program keeps from one call to the next; a caller neither gives nor gets it. It is 0 at first,
    but for the names in `initial`, whose first values are the last of the artifact's weights, in this order.

    `dims` bounds every symbolic name that a shape uses, `conditions` is what must hold of several or of their
    remainders. `constants` are inputs that are not tensors (flags, numbers): the export fixed their values, and a run
    may only repeat them. Nested outputs are flat here, under dotted names (`past_key_values.0.1`).
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: tuple[tuple[str, DimBounds], ...] = ()
    constants: tuple[tuple[str, JsonScalar], ...] = ()
    conditions: tuple[Condition, ...] = ()
    state: tuple[TensorSpec, ...] = ()
    initial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for tensor in (*self.inputs, *self.outputs, *self.state):
            if tensor.dtype not in _DTYPES:
                raise UnsupportedModel(f"tensor {tensor.name!r} has dtype {tensor.dtype}, which only weights may have")
        for tensor in self.state:
            if not all(isinstance(dim, int) for dim in tensor.shape):
                raise UnsupportedModel(f"the state {tensor} has a size that is not known when compiling")
        named = (("input", self.inputs), ("output", self.outputs), ("state", self.state))
        for kind, names in ((kind, [tensor.name for tensor in tensors]) for kind, tensors in named):
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise InvalidOption(f"{kind} names are repeated: {', '.join(repeated)}")
        if not set(self.initial) <= {tensor.name for tensor in self.state} or len(set(self.initial)) < len(
            self.initial
        ):
            raise InvalidOption("the names of first values are not those of the state")
        # Their order means nothing, and canonical JSON would not keep it.
        object.__setattr__(self, "dims", tuple(sorted(self.dims, key=lambda item: item[0])))
        object.__setattr__(self, "constants", tuple(sorted(self.constants, key=lambda item: item[0])))

    @property
    def bounds(self) -> dict[str, DimBounds]:
        """The bounds of each symbolic dim by its name."""
        return dict(self.dims)

    def to_dict(self) -> dict[str, Any]:
        """Return the signature as JSON values; `from_dict` is its inverse."""
        conditions = [
            [each.text, each.why, *([list(each.when)] if each.when is not None else [])] for each in self.conditions
        ]

        def rows(tensors: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
            return [
                {"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} | ({"codes": t.codes} if t.codes else {})
                for t in tensors
            ]

        return {
            **({"conditions": conditions} if conditions else {}),
            **({"state": rows(self.state), "initial": list(self.initial)} if self.state else {}),
            "inputs": rows(self.inputs),
            "outputs": rows(self.outputs),
            "dims": {name: [b.minimum, b.maximum] for name, b in self.dims},
            "constants": dict(self.constants),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Signature:
        """Return the signature that `to_dict` described."""

        def tensors(rows: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(r["name"], r["dtype"], tuple(r["shape"]), r.get("codes")) for r in rows)

        return Signature(
            tensors(data["inputs"]),
            tensors(data["outputs"]),
            tuple((name, DimBounds(low, high)) for name, (low, high) in data["dims"].items()),
            tuple(data["constants"].items()),
            tuple(
                Condition(text, why, *(tuple(when) for when in more)) for text, why, *more in data.get("conditions", ())
            ),
            tensors(data.get("state", [])),
            tuple(data.get("initial", ())),
        )

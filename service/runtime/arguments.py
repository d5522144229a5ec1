"""What a caller gives, by the names of the inputs: arrays of ml_dtypes as codes, where numpy has no such dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relaxc.service.errors import InputName, InputType
from relaxc.service.runtime.tensors import Array, numpy_dtype
from relaxc.service.signature import Signature

__all__ = ["Codes", "by_name", "codes_of"]


def by_name(signature: Signature, args: tuple[Any, ...], named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs by name: given in order, by name, or in one dict. Raise InputName or InputType."""
    if not named and len(args) == 1 and isinstance(args[0], Mapping):
        return by_name(signature, (), args[0])
    order = [spec.name for spec in signature.inputs]
    if len(args) > len(order):
        raise InputName(f"{len(args)} inputs were given; it takes {len(order)}: {', '.join(order)}")
    values = dict(zip(order, args, strict=False))
    constants = dict(signature.constants)
    for name, value in named.items():
        if name in values:
            raise InputName(f"input {name!r} was given twice, in order and by name", name=name)
        if name in constants:
            _check_constant(name, value, constants[name])
        elif name not in order:
            raise InputName(f"there is no input {name!r}; there are {', '.join(order)}", name=name)
        else:
            values[name] = value
    missing = [name for name in order if name not in values]
    if missing:
        raise InputName(f"inputs are missing: {', '.join(missing)}", missing=missing)
    return values


def _check_constant(name: str, value: Any, wanted: Any) -> None:
    if type(value) is not type(wanted) or value != wanted:
        raise InputType(
            f"input {name!r} was fixed to {wanted!r} when the model was exported, it cannot be {value!r}", name=name
        )


class Codes:
    """Which inputs and outputs of a signature are codes."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._inputs = {spec.name: spec.codes for spec in signature.inputs if spec.codes is not None}
        self._outputs = {spec.name: spec.codes for spec in signature.outputs if spec.codes is not None}

    def __bool__(self) -> bool:
        return bool(self._inputs or self._outputs)

    def given(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs by name, those of ml_dtypes as their codes; what has codes already stays as it is.

        Raise InputName for names, and InputType for an array of another dtype.
        """
        values = dict(by_name(self._signature, args, named))
        return values | {name: codes_of(name, values[name], codes) for name, codes in self._inputs.items()}

    def written(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what outputs are written to, likewise."""
        held = {name: codes for name, codes in self._outputs.items() if name in outputs}
        return dict(outputs) | {name: codes_of(name, outputs[name], codes) for name, codes in held.items()}

    def numbers(self, arrays: Mapping[str, Any]) -> dict[str, Array]:
        """Return inputs or outputs by name, those of codes as arrays of ml_dtypes of the same memory."""
        kinds = self._inputs | self._outputs
        return {
            name: array.view(numpy_dtype(kinds[name])) if name in kinds and isinstance(array, np.ndarray) else array
            for name, array in arrays.items()
        }


def codes_of(name: str, value: Any, codes: str) -> Any:
    """Return an array of ml_dtypes as its codes, and what has codes already or is none as it is. Raise InputType for
    another dtype.
    """
    if not isinstance(value, np.ndarray | np.generic) or value.dtype == np.uint8:
        return value
    if value.dtype != numpy_dtype(codes):
        raise InputType(
            f"{name!r} is {value.dtype}, it takes {codes} of ml_dtypes, or its codes as uint8",
            name=name, dtype=str(value.dtype), wanted=codes,
        )  # fmt: skip
    return np.asarray(value).view(np.uint8)

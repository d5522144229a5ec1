"""What a caller gives, by the names of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaxc.service.errors import InputName, InputType
from relaxc.service.signature import Signature

__all__ = ["by_name"]


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

"""Strict parsing of torch.export's JSON: every value has the type that torch's own schema declares for it.

torch's reader (`torch._export.serde.serialize._dict_to_dataclass`) believes what it reads. Here a value of another
type, a missing field or a number that does not fit is ModelMalformed with its place in the JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from enum import IntEnum
from typing import Any

from relaxc.service.errors import ModelMalformed

__all__ = ["parse"]

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1


def parse(kind: Any, data: Any, where: str) -> Any:
    """Return `data` as an object of `kind`, a class of torch._export.serde.schema. Raise ModelMalformed, naming
    `where`.
    """
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return parse(typing.get_args(kind)[0], data, where)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else parse(typing.get_args(kind)[0], data, where)
    if origin is list:
        return _list(typing.get_args(kind)[0], data, where)
    if origin is dict:
        return _dict(typing.get_args(kind)[1], data, where)
    if kind in _SCALARS:
        return _SCALARS[kind](data, where)
    if issubclass(kind, IntEnum):
        return _enum(kind, data, where)
    if _is_union(kind):
        return _union(kind, data, where)
    return _dataclass(kind, data, where)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    from torch._export.serde import schema

    return typing.get_type_hints(kind, globalns=vars(schema), include_extras=True)


@functools.cache
def _is_union(kind: type) -> bool:
    from torch._export.serde.union import _Union

    return issubclass(kind, _Union)


def _expect(ok: bool, what: str, data: Any, where: str) -> None:
    if not ok:
        raise ModelMalformed(f"{where} should be {what}, not {str(data)[:80]!r}", where=where)


def _list(item: Any, data: Any, where: str) -> list[Any]:
    _expect(isinstance(data, list), "a list", data, where)
    return [parse(item, value, f"{where}[{index}]") for index, value in enumerate(data)]


def _dict(item: Any, data: Any, where: str) -> dict[str, Any]:
    _expect(isinstance(data, dict), "an object", data, where)
    return {key: parse(item, value, f"{where}.{key[:80]}") for key, value in data.items()}


def _union(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict) and len(data) == 1, "an object with one key", data, where)
    ((tag, value),) = data.items()
    _expect(tag in _hints(kind), f"one of {kind.__name__}'s kinds", tag, where)
    return kind.create(**{tag: parse(_hints(kind)[tag], value, f"{where}.{tag}")})


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    _expect(isinstance(data, dict), "an object", data, where)
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            values[field.name] = parse(_hints(kind)[field.name], data[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ModelMalformed(f"{where} has no field {field.name}", where=where)
    return kind(**values)


def _int(data: Any, where: str) -> int:
    _expect(isinstance(data, int) and not isinstance(data, bool), "an integer", data, where)
    _expect(_INT_MIN <= data <= _INT_MAX, "an integer of 64 bits", data, where)
    return int(data)


def _enum(kind: type[IntEnum], data: Any, where: str) -> IntEnum:
    _expect(isinstance(data, int) and not isinstance(data, bool), "an integer", data, where)
    _expect(data in kind.__members__.values(), f"a {kind.__name__}", data, where)
    return kind(data)


def _float(data: Any, where: str) -> float:
    # torch writes infinities and NaN as strings, because JSON has none.
    if isinstance(data, str):
        _expect(data in ("Infinity", "-Infinity", "NaN"), "a number", data, where)
        return float(data)
    _expect(isinstance(data, int | float) and not isinstance(data, bool), "a number", data, where)
    _expect(isinstance(data, float) or _INT_MIN <= data <= _INT_MAX, "a number of 64 bits", data, where)
    return float(data)


def _bool(data: Any, where: str) -> bool:
    _expect(isinstance(data, bool), "true or false", data, where)
    return bool(data)


def _str(data: Any, where: str) -> str:
    _expect(isinstance(data, str), "a string", data, where)
    return str(data)


_SCALARS = {int: _int, float: _float, bool: _bool, str: _str}

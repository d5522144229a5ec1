"""Strict reading of untrusted JSON values: the field, and its type, or ArtifactCorrupt with the field's path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from relaxc.service.errors import ArtifactCorrupt, RequestError
from relaxc.service.request import TargetSpec
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec

__all__ = ["Fields", "schedule", "signature", "target", "tensor", "verification"]

T = TypeVar("T")


class Fields:
    """A JSON object whose fields are taken one by one; `done` refuses what nobody took."""

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ArtifactCorrupt(f"{where} is not a JSON object")
        self._left = dict(value)
        self.where = where

    def take(self, name: str, kind: type[T] | tuple[type[T], ...]) -> T:
        """Return the field's value, which is of that type; a bool is no int."""
        if name not in self._left:
            raise ArtifactCorrupt(f"{self.where} has no field {name!r}")
        value = self._left.pop(name)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise ArtifactCorrupt(f"{self.where}.{name} is not of type {wanted}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise ArtifactCorrupt(f"{self.where}.{name} is not a list of strings")
        return tuple(values)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers; a bool is none."""
        values = self.take(name, list)
        if not all(type(value) is int for value in values):
            raise ArtifactCorrupt(f"{self.where}.{name} is not a list of integers")
        return tuple(values)

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def table(self, name: str) -> dict[str, str]:
        """Return an object whose values are strings."""
        values = self.take(name, dict)
        if not all(isinstance(value, str) for value in values.values()):
            raise ArtifactCorrupt(f"{self.where}.{name} is not a table of strings")
        return values

    def maybe(self, name: str, kind: type[T]) -> T | None:
        """Return the field's value, or None for null."""
        return self.take(name, (kind, type(None)))

    def done(self) -> None:
        """Raise ArtifactCorrupt for a field that was not taken."""
        if self._left:
            raise ArtifactCorrupt(f"{self.where} has the unknown fields {', '.join(sorted(self._left))}")


def _checked(where: str, build: Callable[[], T]) -> T:
    try:
        return build()
    except RequestError as error:
        raise ArtifactCorrupt(f"{where}: {error.message}") from error


def _dims(values: list[Any], where: str) -> tuple[int | str, ...]:
    if any(isinstance(value, bool) or not isinstance(value, int | str) for value in values):
        raise ArtifactCorrupt(f"{where} is not a list of sizes and names")
    return tuple(values)


def tensor(value: Any, where: str) -> TensorSpec:
    """Return the TensorSpec that `{"name", "dtype", "shape"}` describes, and `"codes"` where it has some."""
    fields = Fields(value, where)
    name, dtype, shape = fields.take("name", str), fields.take("dtype", str), _dims(fields.take("shape", list), where)
    codes = fields.take("codes", str) if "codes" in fields else None
    fields.done()
    return _checked(where, lambda: TensorSpec(name, dtype, shape, codes))


def signature(value: Any) -> Signature:
    """Return the Signature that its `to_dict` described."""
    fields = Fields(value, "signature")
    inputs, outputs, state = (
        tuple(tensor(row, f"signature.{name}[{i}]") for i, row in enumerate(fields.take(name, list)))
        if name in fields or name != "state"
        else ()
        for name in ("inputs", "outputs", "state")
    )
    initial = fields.strings("initial") if "initial" in fields else ()
    dims = tuple((name, _bounds(name, row)) for name, row in fields.take("dims", dict).items())
    constants = fields.take("constants", dict)
    if not all(isinstance(value, str | int | float | bool | None) for value in constants.values()):
        raise ArtifactCorrupt("signature.constants has a value that is no scalar")
    rows = fields.take("conditions", list) if "conditions" in fields else []
    fields.done()
    conditions = tuple(map(_condition, rows))
    items = tuple(constants.items())
    return _checked("signature", lambda: Signature(inputs, outputs, dims, items, conditions, state, initial))


def _condition(value: Any) -> Condition:
    match value:
        case [str(text), str(why)]:
            return Condition(text, why)
        case [str(text), str(why), [str(name), "==" | "!=" as relation, int(number)]] if type(number) is int:
            return Condition(text, why, (name, relation, number))
    raise ArtifactCorrupt("signature.conditions has a row that is no pair of texts, with an input's value or without")


def _bounds(name: str, value: Any) -> DimBounds:
    match value:
        case [int(low), int() | None as high] if not isinstance(low, bool) and not isinstance(high, bool):
            return _checked(f"signature.dims.{name}", lambda: DimBounds(low, high))
    raise ArtifactCorrupt(f"signature.dims.{name} is not a pair of sizes")


def target(value: Any, where: str = "target") -> TargetSpec:
    """Return the TargetSpec that its `to_dict` described."""
    fields = Fields(value, where)
    name, kind, triple, mcpu, arch = (fields.take(key, str) for key in ("name", "kind", "triple", "mcpu", "arch"))
    cores, vector_bits = fields.take("cores", int), fields.take("vector_bits", int)
    features, host = fields.strings("features"), fields.maybe("host", dict)
    caches = fields.integers("caches") if "caches" in fields else ()
    fields.done()
    inner = None if host is None else target(host, f"{where}.host")
    return _checked(
        where, lambda: TargetSpec(name, kind, triple, mcpu, features, cores, vector_bits, arch, inner, caches)
    )


def schedule(rows: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of a schedule's report."""
    if not all(isinstance(row, dict) for row in rows):
        raise ArtifactCorrupt("the manifest's schedule is not a list of objects")
    return rows


def verification(value: Any) -> dict[str, Any] | str:
    """Return a comparison's report that says whether it passed, or why there is none."""
    if isinstance(value, dict) and not isinstance(value.get("passed"), bool):
        raise ArtifactCorrupt("the manifest's verification does not say whether it passed")
    return value  # type: ignore[no-any-return]

"""Seeded random inputs that a model takes: valid token ids, masks that hide a tail, sizes within the bounds."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relaxc.service.codes import FORMATS
from relaxc.service.errors import InputName, InputShape
from relaxc.service.runtime.dims import shape_of
from relaxc.service.runtime.sizes import cases, choose_sizes
from relaxc.service.runtime.tensors import Array, numpy_dtype
from relaxc.service.signature import Signature, TensorSpec

__all__ = ["Draw", "drawn", "other_operands", "random_inputs"]

_MAX_ELEMENTS = 1 << 31
_WIDEST = 1e9
"""Half of a range that is drawn from: that of a mask with fillers of -3.4e38 says nothing of the other values."""

_HALF = 65504.0
"""The largest float16."""

Range = tuple[float, float]
"""The least and the largest value."""


@dataclass(frozen=True)
class Draw:
    """Inputs to compare with; `again` for those of sizes that others had before, left out where they tell nothing."""

    inputs: dict[str, Array]
    again: bool = False


def drawn(
    signature: Signature, seed: int, ranges: Mapping[str, Range] | None = None, samples: Sequence[Draw] = ()
) -> list[Draw]:
    """Return inputs for each of `choose_sizes`, for each value that decides what must hold, some of one sign, where any
    are floats, some that reach the ends of `ranges`, where floats have any, and the `samples`. Integers of a range
    from 0 on are drawn from all of it.

    Sums of values whose mean is 0 hide what cancels: a product that subtracts its zero points from two long sums was
    right to seven digits of such, and to four of others. And what is quantized for 0 to 255 has one code for most of a
    normal distribution.
    """
    draws: list[Draw] = []
    integers = {spec.name for spec in signature.inputs if spec.dtype.startswith(("int", "uint")) and not spec.codes}
    highs = {name: int(high) + 1 for name, (low, high) in (ranges or {}).items() if low == 0}
    for case, values in cases(signature):
        sizes = choose_sizes(case)
        own = {spec.name: values[spec.name] for spec in signature.inputs if spec.name in values}

        def made(case: Signature = case, own: Mapping[str, int] = own, **given: Any) -> dict[str, Array]:
            return _with_values(random_inputs(case, seed=seed, highs=highs, **given), own)

        draws += [Draw(made(sizes=each)) for each in sizes]
        if any(spec.dtype.startswith(("float", "bfloat")) for spec in signature.inputs):
            draws.append(Draw(made(sizes=sizes[0], one_sign=True), again=True))
    ranges = ranges or {}
    if any(name not in highs or name not in integers for name in ranges):
        plain = random_inputs(signature, seed=seed + 1, sizes=choose_sizes(signature)[0])
        reaching = {name: _reaching(value, ranges[name]) for name, value in plain.items() if name in ranges}
        draws.append(Draw({**plain, **reaching}, again=True))
    return [*draws, *samples]


def other_operands(inputs: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield inputs for a model that stops at these, as in a division by 0: integers at least 1, or all 0; then numbers
    and vectors, which may be axes, sizes, places or factors, as what is often taken for such, each by itself.
    """
    integers = {name: value for name, value in inputs.items() if value.dtype.kind in "iub"}
    yield {**inputs, **{name: np.asarray(np.maximum(value, 1), value.dtype) for name, value in integers.items()}}
    yield {**inputs, **{name: np.zeros_like(value) for name, value in integers.items()}}
    operands = {name: value for name, value in inputs.items() if value.ndim <= 1 and value.size <= _FEW}
    shapes = [value.shape for value in inputs.values() if value.ndim]
    rng = np.random.default_rng(len(operands))
    for _ in range(_TRIES if operands else 0):
        yield {**inputs, **{name: _operand(rng, value, shapes) for name, value in operands.items()}}


def _operand(rng: np.random.Generator, value: Array, shapes: Sequence[tuple[int, ...]]) -> Array:
    count = value.size
    if value.dtype.kind == "f":
        return np.asarray(rng.choice([1.0, 2.0, 0.5], count).reshape(value.shape), value.dtype)
    if value.dtype.kind not in "iu":
        return value
    shape = shapes[int(rng.integers(len(shapes)))] if shapes else ()
    kinds: list[Callable[[], Any]] = [
        lambda: np.ones(count),
        lambda: np.zeros(count),
        lambda: rng.permutation(count),
        lambda: rng.integers(0, 4, count),
        lambda: np.where(np.arange(count) == 0, -1, 1),
        lambda: np.resize(np.array(shape or (1,)), count),
        lambda: rng.permutation(np.resize(np.array(shape or (1,)), count)),
        lambda: _parts(shape[rng.integers(len(shape))] if shape else 1, count),
    ]
    return np.asarray(kinds[rng.integers(len(kinds))]()).astype(value.dtype).reshape(value.shape)


def _parts(size: int, count: int) -> Array:
    """So many numbers that add up to a size."""
    return np.diff(np.linspace(0, size, count + 1).astype(np.int64))


_FEW = 16
"""The most numbers of what may be an operand: axes, sizes, places."""
_TRIES = 64


def _with_values(inputs: dict[str, Array], values: Mapping[str, int]) -> dict[str, Array]:
    return {name: np.full_like(array, values[name]) if name in values else array for name, array in inputs.items()}


def _reaching(value: Array, given: Range) -> Array:
    """Values about the middle of a range, of which a twentieth lie beyond its ends; codes all over it."""
    low, high = given
    rng = np.random.default_rng(value.size)
    if value.dtype.kind in "iu":
        return np.asarray(rng.integers(int(low), int(high) + 1, value.shape)).astype(value.dtype)
    middle, half = (low + high) / 2, (high - low) / 2
    if not half < _WIDEST:
        return value
    found = middle + half / 2 * value.astype(np.float64)
    return np.asarray(found.clip(-_HALF, _HALF) if value.dtype == np.float16 else found, value.dtype)


def random_inputs(
    signature: Signature,
    *,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    int_high: int = 2,
    highs: Mapping[str, int] | None = None,
    one_sign: bool = False,
) -> dict[str, Array]:
    """Return an array for every input, the same for equal arguments.

    `sizes` gives symbolic dims their sizes; others get the first of `choose_sizes`. Floats are normal; with `one_sign`
    they are one more than how large those are. Integers are in 0..int_high-1, as any embedding has two rows, or below
    what `highs` has for them. Inputs whose
    name contains `mask` are ones followed by zeros along the last axis, at least a one in each row, as an empty row
    makes every softmax NaN. Raise InputName for an unknown dim and InputShape for a size outside its bounds.
    """
    chosen = choose_sizes(signature)[0]
    for name, size in (sizes or {}).items():
        if name not in chosen:
            raise InputName(f"there is no symbolic dim {name!r}; there are {', '.join(chosen) or 'none'}", dim=name)
        if size not in signature.bounds[name]:
            raise InputShape(f"dim {name!r} is {size}, outside its bounds {signature.bounds[name]}", dim=name)
        chosen[name] = size
    highs = highs or {}
    return {
        spec.name: _random(spec, _shape(spec, chosen), seed, highs.get(spec.name, int_high), one_sign)
        for spec in signature.inputs
    }


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    try:
        shape = shape_of(spec.shape, sizes)
    except (KeyError, ZeroDivisionError) as error:
        raise InputShape(f"the shape of {spec} cannot be computed from {dict(sizes)}", name=spec.name) from error
    if min(shape, default=0) < 0 or math.prod(shape) > _MAX_ELEMENTS:
        raise InputShape(f"the shape of {spec} would be {list(shape)}", name=spec.name)
    return shape


def _random(spec: TensorSpec, shape: tuple[int, ...], seed: int, int_high: int, one_sign: bool) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])  # by name: order does not matter
    if spec.codes is not None:
        return _numbers(rng, shape, spec.codes)
    dtype = numpy_dtype(spec.dtype)
    is_mask = "mask" in spec.name.lower()
    if spec.dtype.startswith(("float", "bfloat")):
        normal = np.asarray(rng.standard_normal(shape, dtype=np.float32))
        return np.asarray(1 + np.abs(normal) if one_sign else normal, dtype)
    if is_mask and shape:
        return _mask(rng, shape).astype(dtype)
    if spec.dtype == "bool":
        return _integers(rng, shape, 2).astype(dtype)
    return _integers(rng, shape, int_high).astype(dtype)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], codes: str) -> Array:
    """Whole numbers of every code, or floats from a normal distribution, positive where there are no others."""
    row, dtype = FORMATS[codes], numpy_dtype(codes)
    if not row.is_float:
        return np.asarray(rng.integers(row.low, row.high + 1, shape)).astype(row.wide).astype(dtype)
    normal = rng.standard_normal(shape, dtype=np.float32)
    return np.asarray(normal if row.is_signed else np.abs(normal)).astype(dtype)


def _integers(rng: np.random.Generator, shape: tuple[int, ...], high: int) -> Array:
    return np.asarray(rng.integers(0, high, shape))


def _mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    lengths: Any = rng.integers(1, shape[-1] + 1, shape[:-1]) if shape[-1] else np.zeros(shape[:-1], np.int64)
    return np.asarray(np.arange(shape[-1]) < np.asarray(lengths)[..., None])

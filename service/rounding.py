"""Weights rounded to 4 or 8 bits in blocks of the depth: by what rule, and which, so that a reference has the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from relaxc.service.errors import InvalidOption

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "BITS",
    "LEAST_ELEMENTS",
    "RoundedWeight",
    "Rounding",
    "block_of",
    "digest",
    "digests",
    "quantized",
    "rounded",
]

BITS = {"int4": 4, "int8": 8}
"""Bits of what `--weights` names."""

LEAST_ELEMENTS = 1 << 14
"""A matrix of fewer is kept: its bytes are no part of a run, and its error would be."""

_BLOCK, _LEAST_BLOCK = 64, 16
"""Of 64 a float32 scale makes 4.5 bits a weight; 32 would take 5 bits for 1.4 dB, 128 would lose as much for 0.25."""

_ROWS = 1 << 15
"""Blocks that are quantized at once, which stay in a cache."""


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """A matrix: the SHA-256 of its elements as the model's file has them, and the axis of it that is summed over."""

    digest: str
    shape: tuple[int, ...]
    axis: int
    block: int
    error: float
    """The root mean square of what rounding changed, over that of the weights."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What `--weights` did to a model's weights."""

    bits: int
    weights: tuple[RoundedWeight, ...] = ()
    kept: int = 0
    """Constant matrices of products that stay as they are."""
    reasons: tuple[tuple[str, int], ...] = ()
    """Why those were kept, and how many for each; the commonest first."""

    def require(self) -> None:
        """Raise InvalidOption where nothing was rounded since all of the model's matrices have 16 bits."""
        low = sorted({reason for reason, _ in self.reasons} & {"float16", "bfloat16"})
        if low and not self.weights:
            raise InvalidOption(
                f"--weights rounds matrices of float32; this model's are {' and '.join(low)}",
                option="weights",
                remedy="Export the model in float32, with --precision for products in 16 bits, or leave --weights out.",
            )

    @property
    def axes(self) -> dict[str, int]:
        """The axis that is summed over, by the digest of a matrix."""
        return {weight.digest: weight.axis for weight in self.weights}

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` is its inverse."""
        weights = [asdict(weight) for weight in self.weights]
        return {"bits": self.bits, "kept": self.kept, "reasons": dict(self.reasons), "weights": weights}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Rounding:
        """Return the rounding that `to_dict` described."""
        rows = (RoundedWeight(**{**row, "shape": tuple(row["shape"])}) for row in data["weights"])
        return Rounding(int(data["bits"]), tuple(rows), int(data["kept"]), tuple(data.get("reasons", {}).items()))

    @staticmethod
    def of(passes: Mapping[str, Any]) -> Rounding | None:
        """Return the rounding that a manifest's `passes` tell of; None where nothing was to be rounded."""
        return Rounding.from_dict(passes["rounding"]) if "rounding" in passes else None

    def apply(self, array: Array) -> Array | None:
        """Return a matrix of the file as it was rounded; None for one that was not."""
        axis = self.axes.get(digest(array)) if _may_be_rounded(array) else None
        return None if axis is None else rounded(array, self.bits, axis)


def digest(array: Array) -> str:
    """Return the SHA-256 of an array's shape and elements."""
    import numpy as np

    name = hashlib.sha256(str(array.shape).encode())
    name.update(np.ascontiguousarray(array).data)
    return name.hexdigest()


def digests(arrays: Iterable[Array]) -> Iterator[str]:
    """Return the digests of those arrays that may be rounded."""
    for array in arrays:
        if _may_be_rounded(array):
            yield digest(array)


def _may_be_rounded(array: Array) -> bool:
    return array.ndim == 2 and array.dtype == "float32" and array.size >= LEAST_ELEMENTS


def block_of(depth: int) -> int | None:
    """Return the length of a block of a sum of `depth`: a divisor of it; None where there is none."""
    block = _BLOCK
    while block >= _LEAST_BLOCK:
        if depth % block == 0:
            return block
        block //= 2
    return None


def quantized(rows: Array, bits: int) -> tuple[Array, Array]:
    """Return codes in int8 and a float32 scale for each row of a matrix.

    With 4 bits the element that is largest in magnitude becomes -8, so that all 16 codes count; with 8 it is 127.
    """
    import numpy as np

    codes, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        largest = np.take_along_axis(part, np.abs(part).argmax(axis=1)[:, None], axis=1)[:, 0]
        scale = largest / np.float32(low) if bits == BITS["int4"] else np.abs(largest) / np.float32(high)
        divisor = np.where(scale == 0, np.float32(1), scale)
        steps = np.clip(np.rint(part / divisor[:, None]), low, high)
        codes[start : start + _ROWS] = np.where(np.isfinite(steps), steps, 0)
        scales[start : start + _ROWS] = scale
    return codes, scales


def rounded(array: Array, bits: int, axis: int) -> Array:
    """Return a matrix in float32 as `quantized` leaves it, in blocks of `axis`."""
    import numpy as np

    rows = np.ascontiguousarray(array if axis == 1 else array.T)
    block = block_of(rows.shape[1]) or rows.shape[1]
    codes, scales = quantized(rows.reshape(-1, block), bits)
    whole = (codes.astype(np.float32) * scales[:, None]).reshape(rows.shape)
    return whole if axis == 1 else np.ascontiguousarray(whole.T)

"""Heavy operators as values, which plans and records are about: shapes and dtypes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

__all__ = ["Attention", "BlockMatmul", "Conv2d", "Depthwise2d", "Matmul", "Operator", "Pool2d", "operator_from"]

_ASSUMED = 40
"""Rows and columns of an image of unknown size: those in the middle of networks for OCR and detection."""

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """What every operator has: the dtypes of its operands, of its sums and of its result."""

    kind: ClassVar[str]

    operands: tuple[str, ...] = ("float32", "float32")
    accumulate: str = "float32"
    out: str = "float32"

    def key(self) -> dict[str, Any]:
        """Return all that a kernel of it depends on, as JSON values."""
        return {"kind": self.kind, **json.loads(json.dumps(asdict(self)))}

    @property
    def digest(self) -> str:
        """Return 16 hex digits that name the key."""
        text = json.dumps(self.key(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def dtype(self) -> str:
        """Return the dtypes of operands, sums and result, each once: `float32`, `bfloat16+float32`."""
        return "+".join(dict.fromkeys((*self.operands, self.accumulate, self.out)))

    @property
    def element_bits(self) -> int:
        """Return the bits of an element of the left operand."""
        return _bits(self.operands[0])

    @property
    def element_bytes(self) -> int:
        """Return the bytes of an element of the left operand."""
        return self.element_bits // 8

    @property
    def sum_bits(self) -> int:
        """Return the bits of an accumulator, which fix how many of them a vector has."""
        return _bits(self.accumulate)

    @property
    def sum_bytes(self) -> int:
        """Return the bytes of an accumulator."""
        return self.sum_bits // 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul(_Described):
    """`C[m, n] = epilogue(sum over k of A[m, k] * B[k, n])` with a constant B; leading axes of A are folded into m.

    m is 0 where it is not known before the model runs.
    """

    kind: ClassVar[str] = "matmul"

    m: int
    n: int
    k: int

    @property
    def shapes(self) -> str:
        """Return the operands for people: `128x768 768x3072`."""
        return f"{self.m}x{self.k} {self.k}x{self.n}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMatmul(_Described):
    """`C[m, n] = epilogue(sum over k of A[m, k] * (code[n, k] - zero[n, k // block]) * scale[n, k // block])`.

    The codes have `bits` each and are constant, in words of the second dtype of `operands`. `zeros`: blocks have zero
    points of their own; else all have the middle of the codes, `1 << bits - 1`.
    """

    kind: ClassVar[str] = "block_matmul"

    operands: tuple[str, ...] = ("float32", "int32")
    m: int
    n: int
    k: int
    block: int
    bits: int
    zeros: bool = False

    @property
    def codes_in_word(self) -> int:
        """Return how many codes a word holds."""
        return _bits(self.operands[1]) // self.bits

    @property
    def flops(self) -> int:
        """Return its multiplications and additions, however a template unpacks the codes and sums them."""
        return 2 * self.m * self.n * self.k

    @property
    def shapes(self) -> str:
        """Return the operands for people: `1x768 768x3072 int4/64`."""
        zeros = " zeros" if self.zeros else ""
        return f"{self.m}x{self.k} {self.k}x{self.n} int{self.bits}/{self.block}{zeros}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Windowed(_Described):
    """A window that slides over `A[batch, channels, height, width]`; what is known at the call alone is 0."""

    batch: int
    channels: int
    height: int
    width: int
    kernel: Pair
    strides: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)

    @property
    def result(self) -> Pair:
        """Return the rows and columns of the result, 0 where they are not known."""
        rows, columns = (
            self.result_of(axis, size) if size else 0 for axis, size in enumerate((self.height, self.width))
        )
        return rows, columns

    def result_of(self, axis: int, size: Any) -> Any:
        """Return the rows (axis 0) or columns (1) of the result for an image of so many: ints, or expressions."""
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return (size + (self.padding[axis] + self.padding[axis + 2] - reach)) // self.strides[axis] + 1

    @property
    def is_known(self) -> bool:
        """Whether rows and columns of the image are known."""
        return self.height > 0 and self.width > 0

    def assumed(self) -> Self:
        """Return the operator with the sizes for which a plan is made where it has none."""
        height, width = self.height or _ASSUMED, self.width or _ASSUMED
        return self if self.is_known else replace(self, height=height, width=width)

    @property
    def image(self) -> str:
        """Return the sizes of A for people."""
        return f"{self.batch}x{self.channels}x{self.height}x{self.width}"

    @property
    def steps(self) -> str:
        """Return the strides for people."""
        return f"/{self.strides[0]}" if self.strides[0] == self.strides[1] else f"/{self.strides[0]},{self.strides[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2d(_Windowed):
    """`C = epilogue(conv2d(A, W))` of an image and a constant `W[filters, channels // groups, *kernel]`.

    `plain`: A comes as NCHW, as a first layer's image of few channels does, and not in blocks of channels. `gated`: A
    is scaled by a value a channel on the way.
    """

    kind: ClassVar[str] = "conv2d"

    filters: int
    groups: int = 1
    plain: bool = False
    gated: bool = False

    def in_blocks(self, lanes: int) -> Self:
        """Return the operator with its channels filled up to whole blocks of `lanes`: it has the same kernel.

        A 3x3 convolution of fewer channels than a block stays as it is: what its kernel is depends on them.
        """
        if self.kernel == (3, 3) and min(self.channels, self.filters) < lanes:
            return self
        channels = self.channels if self.plain else self.channels + -self.channels % lanes
        return replace(self, channels=channels, filters=self.filters + -self.filters % lanes)

    @property
    def shapes(self) -> str:
        """Return the operands for people: `1x64x56x56 64x64x3x3/1`."""
        weight = f"{self.filters}x{self.channels // self.groups}x{self.kernel[0]}x{self.kernel[1]}"
        return f"{self.image} {weight} {self.steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Depthwise2d(_Windowed):
    """`C[c] = epilogue(conv2d(A[c], W[c]))`, a constant window a channel; `channels_last`: A comes as NHWC."""

    kind: ClassVar[str] = "depthwise_conv2d"

    channels_last: bool = False

    @property
    def shapes(self) -> str:
        """Return the operands for people: `1x64x56x56 64x3x3 /1`."""
        order = " nhwc" if self.channels_last else ""
        weight = f"{self.channels}x{self.kernel[0]}x{self.kernel[1]}"
        return f"{self.image} {weight} {self.steps}{order}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool2d(_Windowed):
    """`C[c] = epilogue(reduce over each window of A[c])`; `reduce` is `max` or `avg`.

    `counts_padding`: a mean is over padding too. `whole`: over all of the image, which one number is left of.
    """

    kind: ClassVar[str] = "pool2d"

    operands: tuple[str, ...] = ("float32",)
    reduce: str
    counts_padding: bool = False
    whole: bool = False

    @property
    def shapes(self) -> str:
        """Return the operands for people: `1x64x112x112 max 3x3 /2`."""
        if self.whole:
            return f"{self.image} {self.reduce}"
        window = f"{self.reduce} {self.kernel[0]}x{self.kernel[1]}"
        return f"{self.image} {window} {self.steps}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(_Described):
    """`C[b, m, h, e] = sum over n of softmax over n of logit(A[b, m, h, :] · B[b, n, h, :]) * V[b, n, h, e]`.

    `depth` and `width` are the columns of a head in A and B, and in V; `batch` has all axes before the heads. A size
    that is not known before the model runs is 0. `logit` names what is done to a score, in order: `add.bmn` adds a mask
    that has the axes b, m and n, `where.n` lets one choose that is the same for all queries, `multiply` takes a number.
    `masked`: what a row without a softmax gets, `nan`, `zero` or `never_nan`.
    """

    kind: ClassVar[str] = "attention"

    operands: tuple[str, ...] = ("float32", "float32", "float32")
    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    logit: tuple[str, ...] = ()
    masked: str = "nan"

    @property
    def shapes(self) -> str:
        """Return the operands for people: `1x12x128x64 128x64 add.mn`."""
        steps = "".join(f" {step}" for step in self.logit)
        left = f"{self.batch}x{self.heads}x{self.queries}x{self.depth}"
        return f"{left} {self.keys}x{self.width}{steps}"


Operator = Matmul | BlockMatmul | Conv2d | Depthwise2d | Pool2d | Attention

_ALL: tuple[type[Operator], ...] = (Matmul, BlockMatmul, Conv2d, Depthwise2d, Pool2d, Attention)
_KINDS = {each.kind: each for each in _ALL}


def operator_from(key: Mapping[str, Any]) -> Operator:
    """Return the operator that `key()` described. Raise ValueError for anything else."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in key.items()}
    kind = _KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ValueError(f"{key} is no operator")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{key} is no {kind.kind}: {error}") from error


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))

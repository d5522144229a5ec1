"""What the layout pass makes of convolutions and pooling in NHWC: sums over the windows of an image."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tvm import te, tirx

from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.extremes import largest, least
from relaxc.schedules.ir.types import Expr, IterVar, SBlock, Tensor

__all__ = [
    "LEFT", "VECTOR", "WINDOWS", "Windows", "conv2d", "depthwise_conv2d", "mixed_sum", "patches", "pixels", "pointwise",
    "pool", "rows_conv2d", "spread",
]  # fmt: skip

VECTOR = 8
"""16-bit channels in the 16 bytes that a copy takes at least."""
LEFT = "relaxc.left"
"""The annotation of a block that spreads the channels of an image: the zeros that it puts left of each line."""
WINDOWS = "relaxc.windows"
"""The annotation of a block that sums over windows: a `Windows` as JSON."""


@dataclass(frozen=True)
class Windows:
    """The windows of an image; `padding` is above and left of it.

    `kind`: `taps` (a weight for each tap, filter and channel), `rows` (the same, a row of taps at a time), `depthwise`
    (a weight for each tap and channel), `max`, `sum`, or `pixels` (the sum of each whole image).
    """

    kind: str
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def of(block: SBlock) -> Windows | None:
        """Return those that a block is annotated with, if it is."""
        text = block.annotations.get(WINDOWS)
        if text is None:
            return None
        values = json.loads(str(text))
        kind = values.pop("kind")
        return Windows(kind, **{name: (rows, columns) for name, (rows, columns) in values.items()})


def _at(
    image: Tensor,
    windows: Windows,
    n: Expr,
    place: tuple[Expr, Expr],
    tap: tuple[IterVar, IterVar],
    c: Expr | IterVar,
    outside: Expr,
) -> Expr:
    """The element of the image under a tap of a window, in the dtype of `outside`, which lies beyond the edges."""
    strides, padding, dilation = windows.strides, windows.padding, windows.dilation
    y, x = (place[i] * strides[i] + tap[i] * dilation[i] - padding[i] for i in (0, 1))
    inside = tirx.all(y >= 0, y < image.shape[1], x >= 0, x < image.shape[2])
    return tirx.if_then_else(inside, image[n, y, x, c].astype(str(outside.ty.dtype)), outside)


def _taps(windows: Windows) -> tuple[IterVar, IterVar]:
    return te.reduce_axis((0, windows.kernel[0]), name="r"), te.reduce_axis((0, windows.kernel[1]), name="s")


def _zero() -> Expr:
    return tirx.const(0.0, "float32")


def _summed(image: te.Tensor) -> str:
    """The dtype in which products of an image's elements are summed: fp32, int32 of bytes."""
    return "int32" if dtype_bytes(str(image.dtype)) == 1 else "float32"


def conv2d(image: te.Tensor, weight: te.Tensor, *, windows: Windows, out: tuple[int, int]) -> te.Tensor:
    """Compute `C[n, y, x, o] += A[n, y*s + r*d - p, x*s + q*d - p, c] * W[r, q, o, c]` in fp32, of bytes in int32."""
    r, q = _taps(windows)
    c = te.reduce_axis((0, image.shape[3]), name="c")
    wide = _summed(image)
    zero = tirx.const(0, wide)
    return te.compute(
        (image.shape[0], *out, weight.shape[2]),
        lambda n, y, x, o: te.sum(
            _at(image, windows, n, (y, x), (r, q), c, zero) * weight[r, q, o, c].astype(wide), axis=[r, q, c]
        ),
        name="conv2d",
        attrs={WINDOWS: windows.to_json()},
    )


def rows_conv2d(image: te.Tensor, weight: te.Tensor, *, windows: Windows, out: tuple[int, int]) -> te.Tensor:
    """Compute the same with `W[r, o, q, c]`, a row of taps and channels in one piece."""
    r, q = _taps(windows)
    c = te.reduce_axis((0, image.shape[3]), name="c")
    return te.compute(
        (image.shape[0], *out, weight.shape[1]),
        lambda n, y, x, o: te.sum(
            _at(image, windows, n, (y, x), (r, q), c, _zero()) * weight[r, o, q, c].astype("float32"), axis=[r, q, c]
        ),
        name="conv2d",
        attrs={WINDOWS: windows.to_json()},
    )


def pointwise(image: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """Compute `C[n, y, x, o] += A[n, y, x, c] * W[o, c]` in fp32, of bytes in int32."""
    c = te.reduce_axis((0, image.shape[3]), name="c")
    wide = _summed(image)
    return te.compute(
        (*image.shape[:3], weight.shape[0]),
        lambda n, y, x, o: te.sum(image[n, y, x, c].astype(wide) * weight[o, c].astype(wide), axis=c),
        name="conv2d",
    )


def patches(image: te.Tensor, *, kernel: tuple[int, int], out: tuple[int, int]) -> te.Tensor:
    """Compute `C[n, y, x, (c, r, q)] = A[n, c, y * kh + r, x * kw + q]`, of an image in NCHW."""
    high, wide = kernel
    count, channels = image.shape[:2]

    def element(n: Expr, y: Expr, x: Expr, at: Expr) -> Expr:
        c, r, q = at // (high * wide), at // wide % high, at % wide
        return image[n, c, y * high + r, x * wide + q]

    return te.compute((count, *out, channels * high * wide), element, name="patches")


def depthwise_conv2d(image: te.Tensor, weight: te.Tensor, *, windows: Windows, out: tuple[int, int]) -> te.Tensor:
    """Compute `C[n, y, x, c] += A[n, y*s + r*d - p, x*s + q*d - p, c] * W[r, q, c]` in fp32."""
    r, q = _taps(windows)
    return te.compute(
        (image.shape[0], *out, image.shape[3]),
        lambda n, y, x, c: te.sum(
            _at(image, windows, n, (y, x), (r, q), c, _zero()) * weight[r, q, c].astype("float32"), axis=[r, q]
        ),
        name="depthwise_conv2d",
        attrs={WINDOWS: windows.to_json()},
    )


def pool(image: te.Tensor, *, windows: Windows, out: tuple[int, int]) -> te.Tensor:
    """Compute the largest element of each window, or the sum of its elements, in fp32."""
    r, q = _taps(windows)
    outside = least("float32") if windows.kind == "max" else _zero()
    reduce = largest if windows.kind == "max" else te.sum
    return te.compute(
        (image.shape[0], *out, image.shape[3]),
        lambda n, y, x, c: reduce(_at(image, windows, n, (y, x), (r, q), c, outside), axis=[r, q]),
        name=f"{windows.kind}_pool2d",
        attrs={WINDOWS: windows.to_json()},
    )


def pixels(image: te.Tensor) -> te.Tensor:
    """Compute `C[n, 0, 0, c] += A[n, y, x, c]` in fp32."""
    y, x = te.reduce_axis((0, image.shape[1]), name="y"), te.reduce_axis((0, image.shape[2]), name="x")
    windows = Windows("pixels", (int(image.shape[1]), int(image.shape[2])))
    return te.compute(
        (image.shape[0], 1, 1, image.shape[3]),
        lambda n, i, j, c: te.sum(image[n, y, x, c].astype("float32"), axis=[y, x]),
        name="sum_of_pixels",
        attrs={WINDOWS: windows.to_json()},
    )


def mixed_sum(wide: te.Tensor, narrow: te.Tensor) -> te.Tensor:
    """Compute the sum of an fp32 image and one of fewer bits."""
    return te.compute(wide.shape, lambda *index: wide[index] + narrow[index].astype(wide.dtype), name="add")


def spread(image: te.Tensor, *, left: int, width: int, dtype: str) -> te.Tensor:
    """Compute `C[n, h, left + w, c] = A[n, c, h, w]`, zero left and right of it and in the other channels of 8."""
    n, channels, height, columns = image.shape
    return te.compute(
        (n, height, width, VECTOR),
        lambda i, y, x, c: tirx.if_then_else(
            tirx.all(c < channels, x >= left, x < columns + left),
            image[i, c, y, x - left].astype(dtype),
            tirx.const(0.0, dtype),
        ),
        name="spread",
        attrs={LEFT: left},
    )

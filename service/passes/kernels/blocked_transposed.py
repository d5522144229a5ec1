"""Transposed convolutions on blocked layouts as one plain convolution, whose channels are the phases of the result.

Result i of a stride s is made of inputs m and taps k with `i + before = m s + k`. So all results of one phase
`(i + before) % s` are a convolution of stride 1 with every s-th tap, of which no tap meets an inserted zero.
Source: Shi et al., 'Is the deconvolution layer the same as a convolutional layer?' (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

from relaxc.schedules.operators import Conv2d

__all__ = ["Phases"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Axis:
    """One axis: `size` inputs, `out` results of which `before` were cut off, `kernel` taps."""

    size: int
    out: int
    kernel: int
    stride: int
    before: int

    @property
    def taps(self) -> int:
        """Of one phase."""
        return -(-self.kernel // self.stride)

    @property
    def first(self) -> int:
        """The step (`(i + before) // stride`) of the first result that the convolution computes."""
        return min(self.before // self.stride, self.taps - 1)

    @property
    def padding(self) -> tuple[int, int]:
        """Of the convolution."""
        last = (self.out - 1 + self.before) // self.stride
        return self.taps - 1 - self.first, max(0, last - self.size + 1)

    def place(self, index: Any) -> tuple[Any, Any]:
        """Return the phase of a result, and its place in it."""
        moved = index + self.before
        return te.indexmod(moved, self.stride), te.indexdiv(moved, self.stride) - self.first


@dataclass(frozen=True)
class Phases:
    """A transposed convolution of `channels` results."""

    height: _Axis
    width: _Axis
    channels: int

    @staticmethod
    def of(image: Sequence[Any], result: Sequence[Any], weight: Array, attrs: Any) -> Phases:
        """From the sizes of the images, the weight `IOHW` and the attributes of R.nn.conv2d_transpose."""
        sides = zip(image, result, weight.shape[2:], attrs.strides, list(attrs.padding)[:2], strict=True)
        height, width = (_Axis(*map(int, side)) for side in sides)
        return Phases(height, width, int(weight.shape[1]))

    def operator(self, batch: int, channels: int, lanes: int) -> Conv2d:
        """Return the convolution that computes the phases of images of so many channels, in blocks of `lanes`."""
        (top, bottom), (left, right) = self.height.padding, self.width.padding
        filled = self.channels + -self.channels % lanes
        return Conv2d(
            batch=batch,
            channels=channels,
            height=self.height.size,
            width=self.width.size,
            filters=filled * self.height.stride * self.width.stride,
            kernel=(self.height.taps, self.width.taps),
            padding=(top, left, bottom, right),
        )

    def weight(self, weight: Array, lanes: int) -> Array:
        """Turn `IOHW` into `OIHW` of the convolution, channels (phase of h, phase of w, o filled up to lanes)."""
        axes = self.height, self.width
        filled = [-weight.shape[1] % lanes, *(a.taps * a.stride - a.kernel for a in axes)]
        inputs, outputs, *_ = (whole := np.pad(weight, [(0, 0), *((0, more) for more in filled)])).shape
        high, wide = (part for a in axes for part in [(a.taps, a.stride)])
        phases = whole.reshape(inputs, outputs, *high, *wide)[:, :, ::-1, :, ::-1]
        turned = phases.transpose(3, 5, 1, 0, 2, 4)
        return np.ascontiguousarray(turned.reshape(-1, inputs, high[0], wide[0]))

    def interleave(self, data: te.Tensor) -> te.Tensor:
        """Compute `C[n, c, h, w, v]`: the phases of `data` in their places."""
        batch, _, _, _, lanes = data.shape
        blocks = -(-self.channels // int(lanes))

        def element(n: Any, c: Any, h: Any, w: Any, v: Any) -> Any:
            (p, y), (q, x) = self.height.place(h), self.width.place(w)
            return data[n, (p * self.width.stride + q) * blocks + c, y, x, v]

        return te.compute((batch, blocks, self.height.out, self.width.out, lanes), element, name="interleave")

"""Where a convolution by tile registers (AMX) has its image: regrouped, so that 16 pixels in a row are a register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from relaxc.schedules.cpu.common.dot_product import steps_of
from relaxc.schedules.cpu.common.matrix_code import ROWS
from relaxc.schedules.operators import Conv2d

__all__ = ["Axis", "Layout"]


@dataclass(frozen=True, slots=True)
class Axis:
    """Rows or columns of an image of `size`, in `phases`, so that what a tap reads of each phase lies side by side.

    Place y of phase f is the image's `y * stride + f * unit - before`.
    """

    size: int
    before: int
    taps: int
    stride: int
    dilation: int
    results: int

    @property
    def unit(self) -> int:
        """From one phase to the next."""
        return gcd(self.stride, self.dilation)

    @property
    def phases(self) -> int:
        """As many as the taps may need: one where there is but one tap, whose other pixels are not read."""
        return 1 if self.taps == 1 else self.stride // self.unit

    def place(self, tap: int) -> tuple[int, int]:
        """Return the phase that a tap reads, and how far behind the result's own place in it."""
        at = tap * self.dilation
        return at % self.stride // self.unit, at // self.stride

    @property
    def reach(self) -> int:
        """How far behind the result's own place the last tap reads."""
        return self.place(self.taps - 1)[1]

    @property
    def extent(self) -> int:
        """Places of a phase."""
        return self.results + self.reach

    def inside(self, phase: int) -> tuple[int, int]:
        """Return the first place of a phase that is in the image, and the one behind the last; both of the extent."""
        first = -(-(self.before - phase * self.unit) // self.stride)
        last = (self.size - 1 + self.before - phase * self.unit) // self.stride
        begin = min(max(first, 0), self.extent)
        return begin, max(begin, min(last + 1, self.extent))

    @property
    def is_inside(self) -> bool:
        """Whether all places of all phases are in the image."""
        return all(self.inside(phase) == (0, self.extent) for phase in range(self.phases))


@dataclass(frozen=True, slots=True)
class Layout:
    """The regrouped image `[n, i, f, y, x, depth]` of an operator, in blocks of `lanes` channels.

    i counts parts of the channels of each group, of which `depth` fill a row of a register; f the phases of rows and
    columns.
    """

    op: Conv2d
    lanes: int
    depth: int
    rows: Axis
    columns: Axis

    @staticmethod
    def of(op: Conv2d, parameters: Mapping[str, int]) -> Layout:
        """Return the layout that a plan's parameters describe."""
        sizes, padding, results = (op.height, op.width), op.padding[:2], op.result
        axes = zip(sizes, padding, op.kernel, op.strides, op.dilation, results, strict=True)
        rows, columns = (Axis(*each) for each in axes)
        return Layout(op, parameters["block"], ROWS * steps_of(parameters), rows, columns)

    @property
    def phases(self) -> int:
        """Of rows times columns."""
        return self.rows.phases * self.columns.phases

    @property
    def parts(self) -> int:
        """Blocks of channels in a row of a register."""
        return self.depth // self.lanes

    @property
    def in_blocks(self) -> int:
        """Blocks of input channels of a group."""
        return -(-self.op.channels // self.op.groups // self.lanes)

    @property
    def depths(self) -> int:
        """Rows of registers that the channels of a group fill."""
        return -(-self.in_blocks // self.parts)

    @property
    def blocks(self) -> int:
        """Blocks of output channels."""
        return -(-self.op.filters // self.lanes)

    @property
    def taps(self) -> int:
        """Of the kernel."""
        return self.op.kernel[0] * self.op.kernel[1]

    @property
    def steps(self) -> int:
        """Steps of the sum."""
        return self.depths * self.taps

    @property
    def guarded(self) -> bool:
        """Whether some place of the regrouped image is of no pixel or of no channel, and is zero."""
        return bool(self.in_blocks % self.parts) or not (self.rows.is_inside and self.columns.is_inside)

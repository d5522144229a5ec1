"""Convolutions of bytes that are checked and timed: those of ResNet-50 as a quantized model has them, and odd ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.gpu import conv_cases
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.gemm_bytes_cases import EPILOGUES, fused, out_of

__all__ = ["TIMED", "ConvBytesCase", "awkward", "prim_func"]


@dataclass(frozen=True)
class ConvBytesCase:
    """`conv_cases.ConvCase` of bytes: an image of the dtype `left`, filters in int8, sums in int32; kind `taps`.

    The epilogues are those of `gemm_bytes_cases`.
    """

    image: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    left: str = "uint8"
    out: str = "uint8"
    epilogue: str = "quantize_relu"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False

    @property
    def of_floats(self) -> ConvCase:
        """The same windows."""
        return ConvCase("taps", self.image, self.filters, self.kernel, self.strides, self.padding, self.dilation)


def _timed() -> list[ConvBytesCase]:
    found = []
    for case in conv_cases.TIMED:
        if case.kind == "taps" and case.parameters is None and case.target == "cuda-sm90":
            found.append(ConvBytesCase(case.image, case.filters, case.kernel, case.strides, case.padding, timed=True))
    return found


TIMED = tuple(_timed())


def awkward(count: int, seed: int) -> list[ConvBytesCase]:
    """Return convolutions of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for case in conv_cases.awkward(4 * count, seed):
        if case.kind != "taps" or len(found) == count:
            continue
        epilogue = draw.choice([each for each in EPILOGUES if each != "zero"])
        image = (*case.image[:3], 16 * max(1, case.image[3] // 16))
        found.append(
            ConvBytesCase(
                image, case.filters, case.kernel, case.strides, case.padding, case.dilation,
                draw.choice(("int8", "uint8")), out_of(draw, epilogue), epilogue, case.parameters,
            )
        )  # fmt: skip
    return found


def prim_func(case: ConvBytesCase) -> Any:
    """Return the PrimFunc of `case` as the graph passes make it."""
    from relaxc.schedules.cuda.conv import compute

    windows = compute.Windows("taps", case.kernel, case.strides, case.padding[:2], case.dilation)
    size = case.of_floats.size
    operands = [(tuple(case.image), case.left), (case.of_floats.weight, "int8")]
    sums = partial(compute.conv2d, windows=windows, out=size)
    return fused(operands, sums, (case.image[0], *size, case.filters), case.epilogue, case.out)

"""Convolutions and pooling that are checked and timed: those of ResNet-50 and MobileNetV2, and odd ones."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.gpu.fused import prim_func_of

__all__ = ["TIMED", "ConvCase", "awkward", "prim_func"]

Pair = tuple[int, int]


@dataclass(frozen=True)
class ConvCase:
    """Windows of an NHWC `image`, `filters` of them; `kind` as in `relaxc.schedules.cuda.conv.compute`, or `pointwise`.

    `padding` is above, left, below and right. `epilogue`: `none`, or `bias` with `relu`, `clip`, `residual` behind it.
    """

    kind: str
    image: tuple[int, int, int, int]
    filters: int
    kernel: Pair = (1, 1)
    strides: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    dtype: str = "float16"
    out: str = "float16"
    epilogue: str = "bias_relu"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    target: str = "cuda-sm90"
    """Of `cuda-sm80` an H100 takes the PTX."""
    open: tuple[int, ...] = ()
    """Which of images, lines and columns (0, 1, 2) the kernel knows at the call alone."""
    rule: str = ""
    """The template that is meant; '' for the first that takes it."""

    @property
    def size(self) -> Pair:
        """Lines of the result, and pixels of a line."""
        if self.kind == "pixels":
            return 1, 1
        sizes = [
            (self.image[1 + i] + self.padding[i] + self.padding[2 + i] - (self.kernel[i] - 1) * self.dilation[i] - 1)
            // self.strides[i]
            + 1
            for i in (0, 1)
        ]
        return sizes[0], sizes[1]

    @property
    def weight(self) -> tuple[int, ...]:
        """The shape of the weight; () for pooling."""
        (kh, kw), channels, n = self.kernel, self.image[3], self.filters
        shapes: dict[str, tuple[int, ...]] = {
            "taps": (kh, kw, n, channels), "rows": (kh, n, kw, channels), "pointwise": (n, channels),
            "depthwise": (kh, kw, channels),
        }  # fmt: skip
        return shapes.get(self.kind, ())


def prim_func(case: ConvCase) -> Any:
    """The PrimFunc of `case` as the graph passes make it."""
    from tvm import relax, tirx
    from tvm.relax import op

    image: list[Any] = list(case.image)
    for axis in case.open:
        image[axis] = tirx.Var(f"n{axis}", "int64")
    case = replace(case, image=tuple(image))  # type: ignore[arg-type]
    given = [relax.Var("x", relax.TensorType(case.image, case.dtype))]
    given += [relax.Var("w", relax.TensorType(case.weight, case.dtype))] if case.weight else []
    operands = len(given)
    if "bias" in case.epilogue:
        given.append(relax.Var("b", relax.TensorType((1, 1, 1, case.filters), "float32")))
    if "residual" in case.epilogue:
        given.append(relax.Var("r", relax.TensorType((case.image[0], *case.size, case.filters), case.dtype)))
    block = relax.BlockBuilder()
    with block.function("main", given):
        with block.dataflow():
            attrs = {"op_pattern": 4}
            value = block.emit_te(_compute(case), *given[:operands], primfunc_name_hint="sums", primfunc_attrs=attrs)
            mean = {"sum": case.kernel[0] * case.kernel[1], "pixels": case.image[1] * case.image[2]}.get(case.kind)
            value = op.multiply(value, relax.const(1 / mean, "float32")) if mean else value
            for extra in given[operands:]:
                value = op.add(value, extra if str(extra.ty.dtype) == "float32" else op.astype(extra, "float32"))
            value = op.nn.relu(value) if "relu" in case.epilogue else value
            value = op.clip(value, 0, 6) if "clip" in case.epilogue else value
            value = value if case.out == "float32" else op.astype(value, case.out)
            result = block.emit_output(block.normalize(value))
        block.emit_func_output(result)
    return prim_func_of(block.get())


def _compute(case: ConvCase) -> Any:
    from relaxc.schedules.cuda.conv import compute

    windows = compute.Windows(case.kind, case.kernel, case.strides, case.padding[:2], case.dilation)
    placed = partial(
        {"taps": compute.conv2d, "rows": compute.rows_conv2d, "depthwise": compute.depthwise_conv2d}.get(
            case.kind, compute.pool
        ),
        windows=windows,
        out=case.size,
    )
    return {"pointwise": compute.pointwise, "pixels": compute.pixels}.get(case.kind, placed)


_AROUND = (1, 1, 1, 1)


def _resnet(batch: int) -> list[ConvCase]:
    square = [(56, 64, 64, 1), (56, 128, 128, 2), (28, 128, 128, 1), (28, 256, 256, 2), (14, 256, 256, 1)]
    square += [(14, 512, 512, 2), (7, 512, 512, 1)]
    found = [ConvCase("taps", (batch, s, s, c), n, (3, 3), (by, by), _AROUND) for s, c, n, by in square]
    found.append(ConvCase("rows", (batch, 224, 230, 8), 64, (7, 7), (2, 2), (3, 0, 3, 0)))
    halved = [(56, 256, 512), (28, 512, 1024), (14, 1024, 2048)]
    found += [ConvCase("taps", (batch, s, s, c), n, strides=(2, 2), epilogue="bias") for s, c, n in halved]
    wider = [(56, 64, 256), (28, 128, 512), (14, 256, 1024), (7, 512, 2048)]
    found += [ConvCase("pointwise", (batch, s, s, c), n, epilogue="bias_residual_relu") for s, c, n in wider]
    narrower = [(56, 64, 64), (56, 256, 64), (56, 256, 128), (28, 512, 128), (28, 512, 256), (14, 1024, 256)]
    narrower += [(14, 1024, 512), (7, 2048, 512)]
    found += [ConvCase("pointwise", (batch, s, s, c), n) for s, c, n in narrower]
    found.append(ConvCase("max", (batch, 112, 112, 64), 64, (3, 3), (2, 2), _AROUND, epilogue="none"))
    return [*found, ConvCase("pixels", (batch, 7, 7, 2048), 2048, epilogue="none")]


def _mobilenet(batch: int) -> list[ConvCase]:
    shapes = [(112, 32, 1), (112, 96, 2), (56, 144, 1), (56, 144, 2), (28, 192, 1), (28, 192, 2), (14, 384, 1)]
    shapes += [(14, 576, 1), (14, 576, 2), (7, 960, 1)]
    stem = ConvCase("rows", (batch, 224, 226, 8), 32, (3, 3), (2, 2), (1, 0, 1, 0), epilogue="bias_clip")
    return [
        stem,
        *(
            ConvCase("depthwise", (batch, s, s, c), c, (3, 3), (by, by), _AROUND, epilogue="bias_clip")
            for s, c, by in shapes
        ),
    ]


_DEFAULTS = [case for batch in (1, 32) for case in (*_resnet(batch), *_mobilenet(batch))]


def _tile(rows: int, columns: int, splits: int, **others: int) -> dict[str, int]:
    return {"rows": rows, "columns": columns, "splits": splits, **others}


# Beside the default, what might be faster: a parameter that is not named is the default's. By kind, batch, lines of the
# image, channels and filters.
_DEEP = (_tile(64, 128, 1, cluster=2), _tile(128, 128, 2), _tile(128, 128, 1, cluster=2), _tile(128, 256, 4))
_WIDE = ({"ahead": 1}, _tile(128, 256, 1, ahead=1), _tile(64, 256, 0, ahead=1), _tile(128, 128, 1, ahead=1))
_NARROW = (_tile(128, 64, 0), _tile(128, 64, 1), _tile(64, 64, 1), _tile(128, 128, 1, cluster=2))
_STEM = tuple({"pixels": p, "consumers": c} for p, c in ((16, 2), (24, 3), (56, 3), (112, 2), (112, 3)))
_POINTS: Mapping[tuple[str, int, int, int, int], tuple[dict[str, int], ...]] = {
    ("taps", 32, 7, 512, 512): _DEEP, ("taps", 32, 14, 512, 512): _DEEP, ("pointwise", 32, 14, 1024, 512): _DEEP,
    ("pointwise", 32, 14, 1024, 256): _DEEP, ("pointwise", 32, 28, 512, 256): _DEEP,
    ("pointwise", 32, 28, 512, 128): _DEEP, ("taps", 32, 56, 128, 128): _DEEP,
    ("pointwise", 32, 56, 64, 256): _WIDE, ("pointwise", 32, 28, 128, 512): _WIDE,
    ("pointwise", 32, 14, 256, 1024): _WIDE, ("pointwise", 32, 7, 512, 2048): _WIDE,
    ("pointwise", 1, 56, 64, 256): ({"ahead": 1}, _tile(64, 64, 1)), ("pointwise", 1, 28, 128, 512): ({"ahead": 1},),
    ("pointwise", 1, 56, 256, 64): (_tile(64, 64, 2), _tile(64, 64, 1, ahead=1)),
    ("pointwise", 32, 56, 64, 64): _NARROW, ("rows", 32, 224, 8, 64): _STEM,
    ("rows", 32, 224, 8, 32): _STEM, ("rows", 1, 224, 8, 64): ({"pixels": 24},),
    ("depthwise", 1, 56, 144, 144): tuple({"strip": s, "per_sm": 1} for s in (2, 4)),
    **{
        ("depthwise", 32, size, channels, channels): tuple({"strip": s, "per_sm": 1} for s in (1, 2, 4))
        for size, channels in ((112, 32), (112, 96), (56, 144))
    },
}  # fmt: skip
_AT_POINTS = [
    replace(case, parameters=point)
    for case in _DEFAULTS
    for point in _POINTS.get((case.kind, case.image[0], case.image[1], case.image[3], case.filters), ())
]
_OLDER = [replace(case, target="cuda-sm80") for case in _DEFAULTS if case.kind in ("depthwise", "max", "pixels")]
TIMED: tuple[ConvCase, ...] = tuple(replace(case, timed=True) for case in (*_DEFAULTS, *_AT_POINTS, *_OLDER))


def awkward(count: int, seed: int) -> list[ConvCase]:
    """Convolutions of odd sizes, strides, dilations and paddings, with parameters all over the space."""
    draw = random.Random(seed)
    found: list[ConvCase] = []
    while len(found) < count:
        kernel = draw.choice(((3, 3), (3, 3), (1, 1), (5, 5), (1, 3), (3, 1), (2, 2)))
        dilation = draw.choice(((1, 1), (1, 1), (1, 1), (2, 2), (1, 2)))
        dtype = draw.choice(("float16", "float16", "bfloat16"))
        kind = draw.choice(("taps", "taps", "taps", "depthwise", "max"))
        channels, filters = (8 * draw.choice((1, 3, 4, 8, 9, 16, 24)) for _ in range(2))
        sides = (draw.choice((7, 8, 13, 14, 19, 28)), draw.choice((7, 9, 14, 16, 23, 30)))
        tile = {
            "rows": draw.choice((64, 128)), "columns": draw.choice((64, 128, 192, 256)), "atoms": draw.choice((1, 2)),
            "splits": draw.choice((0, 1, 2, 4)), "cluster": draw.choice((1, 2)), "group": draw.choice((4, 8)),
        } | ({"ahead": 1} if len(found) % 3 == 0 else {})  # fmt: skip
        case = ConvCase(
            kind, (draw.choice((1, 2, 3, 5, 9)), *sides, channels), filters if kind == "taps" else channels, kernel,
            draw.choice(((1, 1), (1, 1), (2, 2), (2, 1), (3, 2))),
            tuple(draw.choice((0, 1, kernel[i % 2] // 2)) for i in range(4)),  # type: ignore[arg-type]
            dilation, dtype, draw.choice((dtype, dtype, "float32")),
            "none" if kind == "max" else draw.choice(("none", "bias_relu", "bias_residual_relu")),
            tile if kind == "taps" else {"strip": draw.choice((1, 2, 4))},
        )  # fmt: skip
        if min(case.size) > 0:
            older = kind != "taps" and len(found) % 2 == 0
            found.append(replace(case, target="cuda-sm80") if older else case)
    return found

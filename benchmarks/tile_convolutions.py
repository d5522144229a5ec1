"""Convolutions by AMX's tile registers beside those by vectors, and torch's: built here, run where a CPU has AMX.

    python -m benchmarks.tile_convolutions build FOLDER
    python -m benchmarks.tile_convolutions run FOLDER [--seconds 2] [--threads 2]

As `benchmarks.tiles` does of products. Ours read and write blocks of channels, with a relu and a rounding behind; torch
has a convolution of bfloat16 alone, channels last. `DxA` is the best plan by its estimate with registers of sums D down
and A across, `other lines` the best that differs from the default in these alone, `vectors` the default with neither,
`float32` that of float32, for which Winograd's may stand: its weights are random, and its result is not compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tile_bounds import Gauge, build_gauge, require_tiles
from benchmarks.tiles import command, drawn, taken, target_of_two_cores, use_threads

__all__ = ["build", "main", "run"]

RESNET = [(64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 512, 1, 2, 56), (128, 128, 3, 2, 56)]
RESNET += [(128, 128, 3, 1, 28), (256, 256, 3, 1, 14), (1024, 256, 1, 1, 14), (512, 512, 3, 1, 7), (512, 2048, 1, 1, 7)]
MOBILENET = [(16, 96, 1, 1, 112), (144, 32, 1, 1, 28), (384, 64, 1, 1, 14), (960, 320, 1, 1, 7)]
SHAPES = (*RESNET, *MOBILENET)
"""Channels, filters, kernel, stride, and the image's rows and columns."""

OPERANDS = (("bfloat16", "bfloat16"), ("uint8", "int8"))
_SCALE = 1 / 256
"""Of a sum of bytes to a byte."""


def build(folder: Path) -> None:
    """Write the kernels, by plans of two cores of a Sapphire Rapids."""
    import tvm

    from relaxc.schedules import cpu as rules
    from relaxc.schedules.cpu import planning
    from relaxc.schedules.dots import accumulator_of
    from relaxc.schedules.hardware import cpu_of
    from relaxc.schedules.operators import Conv2d
    from relaxc.schedules.template import Schedule
    from relaxc.service.lowering import pipeline
    from relaxc.service.lowering.vector_functions import VECTOR_MATH

    pipeline.register()
    target = target_of_two_cores()
    cpu = cpu_of(target)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for operands in OPERANDS:
        total = accumulator_of(operands[1])
        for channels, filters, kernel, stride, size in SHAPES:
            op = Conv2d(
                batch=1, channels=channels, height=size, width=size, filters=filters, kernel=(kernel, kernel),
                strides=(stride, stride), padding=(kernel // 2,) * 4, operands=operands, accumulate=total, out=total,
            )  # fmt: skip
            for way, plan in _plans(op, cpu).items():
                rule = next(each for each in rules.RULES if each.name == plan.template)
                made = rule.apply(_primfunc(plan, op), target)
                assert isinstance(made, Schedule), made
                name = f"{operands[0]}_{channels}_{filters}_{kernel}_{stride}_{size}_{way}.so".replace(" ", "_")
                func = made.func.with_attr(VECTOR_MATH, True)
                tvm.compile(func, target, tir_pipeline=pipeline.NAME).export_library(str(folder / name))
                packed = planning.packed_shape(plan, (filters, channels, kernel, kernel))
                shape = (channels, filters, kernel, stride, size)
                row = {"library": name, "way": way, "operands": plan.operator.operands, "shape": shape}
                rows.append(row | {"packed": packed, "plan": dict(plan.parameters), "cycles": plan.cycles})
    build_gauge(folder)
    (folder / "kernels.json").write_text(json.dumps(rows))


def _plans(op: Any, cpu: Any) -> dict[str, Any]:
    """The plans to compare, the default first."""
    from relaxc.schedules.cpu import planning
    from relaxc.schedules.cpu.common.tile_registers import MATRIX
    from relaxc.schedules.cpu.conv import blocked_plan, tiles_plan

    of_tiles = [planning.planned(op, "cpu.conv2d_tiles", point, cpu) for point in tiles_plan.points(op, cpu)]
    found = {"tiles": planning.default(op, cpu)}
    first = found["tiles"].parameters
    for plan in sorted(of_tiles, key=lambda plan: plan.cycles):
        differing = [name for name, value in plan.parameters.items() if first.get(name) != value]
        if MATRIX in differing or "vectors" in differing:
            found.setdefault(f"{plan.parameters[MATRIX]}x{plan.parameters['vectors']}", plan)
        elif len(differing) == 1:
            found.setdefault(f"other {differing[0]}", plan)
    found["vectors"] = planning.planned(op, "cpu.conv2d_blocked", blocked_plan.default(op, cpu), cpu)
    if op.accumulate == "float32":
        found["float32"] = planning.default(replace(op, operands=("float32", "float32")), cpu)
    return found


def _primfunc(plan: Any, op: Any) -> Any:
    """The convolution by a plan with a relu, rounded to what its image is of."""
    from tvm import te, tirx

    from relaxc.schedules.cpu import planning

    lanes, image = plan.parameters["block"], plan.operator.operands[0]
    a = te.placeholder((1, op.channels // lanes, op.height, op.width, lanes), image, "a")
    weight = planning.packed_shape(plan, (op.filters, op.channels, *op.kernel))
    b = te.placeholder(weight, plan.operator.operands[1], "b")
    sums = planning.computation(plan)(a, b)

    def rounded(*index: Any) -> Any:
        value = sums(*index)
        if image != "uint8":
            return te.max(value, 0.0).astype(image)
        scaled = tirx.nearbyint(value.astype("float32") * _SCALE)
        return te.max(te.min(scaled, 255.0), 0.0).astype(image)

    result = te.compute(sums.shape, rounded, name="rounded")
    return te.create_prim_func([a, b, result], index_dtype_override="int64")


def run(folder: Path, seconds: float, threads: int) -> None:
    """Print the medians of each convolution, and what other ways take of the default's time.

    Raise ValueError where one is wrong, and SystemExit where there is no AMX.
    """
    require_tiles()
    use_threads(threads)
    rows, gauge = json.loads((folder / "kernels.json").read_text()), Gauge(folder)
    for at, row in enumerate(rows):
        if row["way"] != "tiles":
            continue
        alike = [each for each in rows[at:] if each["shape"] == row["shape"]]
        end = next((i for i, each in enumerate(alike) if i and each["way"] == "tiles"), len(alike))
        channels, filters, kernel, stride, size = row["shape"]
        pixels = ((size + kernel // 2 * 2 - kernel) // stride + 1) ** 2
        said = taken(_ways(folder, alike[:end]), "tiles", seconds, channels * filters * kernel**2 * pixels, gauge)
        print(f"{row['operands'][0]} {channels}→{filters} {kernel}x{kernel}/{stride} of {size}: {said}", flush=True)
        plans = {each["way"]: f"{round(each['cycles'])} {each['plan']}" for each in alike[:end]}
        print("   ", plans, flush=True)


def _ways(folder: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Callable[[], Any]]:
    """The calls that compute a convolution, of operands of their own; ours are right."""
    import torch

    from relaxc.service.runtime.library import load_library

    channels, filters, kernel, stride, size = rows[0]["shape"]
    x, w = drawn(rows[0]["operands"][0], (1, channels, size, size), (filters, channels, kernel, kernel))
    geometry = {"stride": stride, "padding": kernel // 2}
    want = torch.nn.functional.conv2d(x.double(), w.double(), **geometry)
    want = want.clamp(0) if x.dtype == torch.bfloat16 else (want * _SCALE).round().clamp(0, 255)
    found: dict[str, Callable[[], Any]] = {}
    for row in rows:
        image, taps = (each.to(getattr(torch, dtype)) for each, dtype in zip((x, w), row["operands"], strict=True))
        lanes = row["plan"]["block"]
        blocks = image.reshape(1, -1, lanes, size, size).permute(0, 1, 3, 4, 2).contiguous()
        out = torch.empty(1, filters // lanes, *want.shape[2:], lanes, dtype=image.dtype)
        function = load_library(folder / row["library"])["main"]
        is_winograd = "size" in row["plan"]
        packed = torch.randn(row["packed"]) if is_winograd else _packed(taps, row["packed"])
        function(blocks, packed, out)
        made = out.permute(0, 1, 4, 2, 3).reshape(want.shape).double()
        allowed = 1 if image.dtype == torch.uint8 else 0.01 * float(want.abs().max())
        if not is_winograd and float((made - want).abs().max()) > allowed:
            raise ValueError(f"{row['library']} computes something else")
        found[row["way"]] = partial(function, blocks, packed, out)
    if x.dtype == torch.bfloat16:
        last = x.contiguous(memory_format=torch.channels_last), w.contiguous(memory_format=torch.channels_last)
        found["torch"] = partial(torch.nn.functional.conv2d, *last, **geometry)
    return found


def _packed(taps: Any, shape: Sequence[int]) -> Any:
    """The weights `OIHW` as `OIHW[i]i[o]o`, or `OIHW[i / dot]i[o]o[dot]i`, of this shape."""
    import torch

    blocks, depths, height, width, steps, lanes, *rest = shape
    dot = rest[0] if rest else 1
    filled = torch.nn.functional.pad(taps, (0, 0, 0, 0, 0, depths * steps * dot - taps.shape[1]))
    parts = filled.reshape(blocks, lanes, depths, steps, dot, height, width).permute(0, 2, 5, 6, 3, 1, 4)
    return parts.reshape(tuple(shape)).contiguous()


def main() -> None:
    """Read the command line."""
    command(__doc__, build, run, 2.0, "convolution")


if __name__ == "__main__":
    main()

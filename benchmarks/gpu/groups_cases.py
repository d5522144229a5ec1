"""Group norms of NHWC images, with what is fused behind them: what memory's speed bounds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

__all__ = ["TIMED", "GroupsCase", "awkward", "prim_func"]


@dataclass(frozen=True)
class GroupsCase:
    """`groups` of the last axis of `shape`, NHWC, from `dtype` to `out`; `behind` is none, silu, or a residual."""

    shape: tuple[int, int, int, int]
    groups: int = 32
    dtype: str = "float32"
    out: str = "float16"
    behind: str = "silu"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    kind: str = "group_norm"
    target: str = "cuda-sm90"
    """Of `cuda-sm80` an H100 takes the PTX."""

    @property
    def rule(self) -> str:
        """The template that is meant."""
        return "cuda.group_norm"


def prim_func(case: GroupsCase) -> Any:
    """One PrimFunc of all that `case` computes."""
    from tvm import relax
    from tvm.relax import op

    from benchmarks.gpu.fused import prim_func_of
    from relaxc.schedules.cuda.groups.compute import group_norm

    given = {"x": relax.Var("x", relax.TensorType(case.shape, case.dtype))}
    given |= {name: relax.Var(name, relax.TensorType(case.shape[-1:], "float32")) for name in ("gamma", "beta")}
    if case.behind == "residual":
        given["r"] = relax.Var("r", relax.TensorType(case.shape, "float16"))
    block = relax.BlockBuilder()
    with block.function("main", list(given.values())):
        with block.dataflow():
            function = partial(group_norm, groups=case.groups, epsilon=1e-5)
            operands = [given[name] for name in ("x", "gamma", "beta")]
            attrs = {"op_pattern": 4}
            made = block.emit(block.call_te(function, *operands, primfunc_name_hint="group_norm", primfunc_attrs=attrs))
            made = block.emit(op.nn.silu(made)) if case.behind == "silu" else made
            made = block.emit(op.add(made, op.astype(given["r"], "float32"))) if "r" in given else made
            result = block.emit_output(op.astype(made, case.out) if case.out != "float32" else op.nn.relu(made))
        block.emit_func_output(result)
    return prim_func_of(block.get())


_IMAGES = (
    GroupsCase((32, 32, 32, 640)), GroupsCase((32, 32, 32, 640), behind="none"), GroupsCase((1, 32, 32, 640)),
    GroupsCase((32, 32, 32, 320), dtype="float16"), GroupsCase((1, 32, 32, 320), dtype="float16"),
    GroupsCase((2, 64, 64, 320), dtype="float16"), GroupsCase((1, 128, 128, 512), dtype="float16"),
    GroupsCase((32, 32, 32, 640), dtype="float16"), GroupsCase((32, 32, 32, 640), dtype="float16", behind="none"),
    GroupsCase((32, 16, 16, 1280), dtype="float16"), GroupsCase((8, 64, 64, 320), dtype="float16"),
    GroupsCase((1, 32, 32, 640), dtype="float16"),
)  # fmt: skip
_POINTS = {
    _IMAGES[0]: ((80, 4, 320, 1, 2), (80, 2, 320, 1, 1), (40, 2, 320, 1, 2)),
    _IMAGES[1]: ((80, 4, 320, 1, 2),),
    _IMAGES[2]: ((40, 8, 512, 1, 0), (40, 8, 320, 1, 2), (40, 6, 320, 1, 1), (40, 6, 320, 1, 2)),
    _IMAGES[3]: ((80, 2, 256, 1, 0), (80, 2, 320, 1, 2), (80, 2, 320, 1, 1), (80, 3, 320, 1, 2), (160, 4, 320, 1, 2)),
    _IMAGES[4]: ((40, 8, 512, 1, 0), (40, 7, 256, 1, 1), (40, 8, 256, 1, 2), (40, 8, 256, 1, 1), (40, 8, 320, 1, 2)),
    _IMAGES[5]: (
        (40, 8, 512, 1, 0), (40, 7, 320, 1, 1), (40, 6, 320, 1, 1), (40, 6, 320, 1, 2), (40, 6, 512, 1, 1),
        (40, 5, 320, 1, 1), (40, 6, 512, 1, 0), (40, 8, 320, 2, 1),
    ),
    _IMAGES[6]: (
        (16, 8, 256, 1, 0), (64, 8, 512, 1, 0), (32, 6, 512, 1, 0), (32, 6, 512, 1, 1), (32, 6, 320, 1, 1),
        (16, 6, 320, 1, 2), (16, 6, 384, 1, 2), (16, 5, 320, 1, 2),
    ),
    _IMAGES[7]: (
        (160, 8, 256, 1, 0), (80, 2, 320, 1, 2), (80, 2, 384, 1, 2), (80, 1, 320, 1, 2), (80, 4, 320, 1, 2),
        (80, 3, 320, 1, 2), (160, 4, 320, 1, 2),
    ),
    _IMAGES[8]: ((80, 2, 320, 1, 2), (80, 2, 512, 1, 0)),
    _IMAGES[9]: (
        (160, 2, 256, 1, 0), (80, 1, 320, 1, 1), (80, 1, 320, 1, 2), (80, 1, 384, 1, 2), (80, 1, 256, 1, 3),
        (160, 1, 320, 1, 2), (160, 2, 320, 1, 2), (80, 2, 320, 1, 2),
    ),
    _IMAGES[10]: (
        (40, 2, 512, 1, 0), (40, 5, 320, 1, 2), (80, 6, 320, 1, 2), (80, 6, 256, 1, 2), (80, 5, 320, 1, 2),
        (80, 7, 320, 1, 2), (160, 8, 320, 1, 2), (80, 6, 512, 1, 1),
    ),
    _IMAGES[11]: ((40, 8, 512, 1, 0), (40, 8, 320, 1, 2), (40, 6, 320, 1, 1), (40, 6, 320, 1, 2), (80, 8, 320, 1, 1)),
}  # fmt: skip
"""Chunk, cluster, threads, share and teams to compare with the default."""
_NAMES = ("chunk", "cluster", "threads", "share", "teams")
_TRIED = tuple(
    replace(case, parameters=dict(zip(_NAMES, point, strict=True)))
    for case, points in _POINTS.items()
    for point in points
)
_OLDER = tuple(replace(case, target="cuda-sm80") for case in _IMAGES)
TIMED: tuple[GroupsCase, ...] = tuple(replace(case, timed=True) for case in (*_IMAGES, *_TRIED, *_OLDER))


def awkward(count: int, seed: int) -> list[GroupsCase]:
    """Images of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    return [
        GroupsCase(
            (
                draw.choice((1, 2, 5, 70)),
                draw.choice((1, 3, 17, 40)),
                draw.choice((1, 5, 16, 33)),
                8 * draw.choice((2, 4, 6, 10, 20)) * (groups := draw.choice((1, 2, 8))),
            ),
            groups * draw.choice((1, 4, 8)),
            draw.choice(("float32", "float16", "bfloat16")),
            draw.choice(("float32", "float16", "bfloat16")),
            draw.choice(("none", "silu", "residual")),
            {
                "chunk": draw.choice((1, 64, 160, 640)),
                "cluster": draw.choice((1, 2, 3, 4, 7, 8)),
                "threads": draw.choice((256, 320, 384, 512)),
                "share": draw.choice((1, 2, 4)),
                "teams": draw.choice((0, 0, 1, 2, 3)),
            },
            target=draw.choice(("cuda-sm80", "cuda-sm90")),
        )
        for _ in range(count)
    ]

"""What reduces nothing: casts, slices, concatenations, gathers, functions of elements and transpositions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.gpu.fused import one_prim_func_of

__all__ = ["KINDS", "TIMED", "MovesCase", "awkward", "drawn", "operands", "prim_func", "result"]

_FUNCTIONS = ("gelu", "silu", "tanh", "exp", "relu")
_FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class MovesCase:
    """`kind` over `shape`, from `dtype` to `out`; `axes` is a permutation, or an axis and numbers that `kind` needs.

    `rule` is the template that is meant.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str = "float16"
    out: str = "float16"
    axes: tuple[int, ...] = ()
    rule: str = "cuda.elementwise"
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    target: str = "cuda-sm90"
    """Of `cuda-sm80` an H100 takes the PTX."""
    open: tuple[int, ...] = ()
    """Sizes that the kernel knows at the call alone."""


def operands(case: MovesCase) -> list[tuple[str, tuple[int, ...], str]]:
    """Return the name, the shape and the dtype of each operand."""
    shape, dtype = case.shape, case.dtype
    x = ("x", shape, dtype)
    if case.kind == "concat":
        axis, extent = case.axes
        return [x, ("y", (*shape[:axis], extent, *shape[axis + 1 :]), dtype)]
    if case.kind == "append":  # a row of a merged product in fp32 behind a cache of heads
        batch, heads, _, head = shape
        return [("x", (batch, 1, 3 * heads * head), "float32"), ("y", shape, dtype)]
    if case.kind == "rotary":
        heads, head = case.axes
        table = ((1, shape[1], 1, head), "float32")
        return [x, ("cos", *table), ("sin", *table)]
    if case.kind == "patches":
        batch, channels, high, wide = shape
        rows = high * wide + 1
        return [x, ("y", (batch, 1, channels), dtype), ("z", (1, rows, channels), "float32")]
    return [x, *_second(case)]


def _second(case: MovesCase) -> list[tuple[str, tuple[int, ...], str]]:
    shape, kind = case.shape, case.kind
    if kind in ("add", "equal", "floor_divide", "transposes_add"):
        return [("y", shape, case.dtype)]
    if kind == "transpose_add":
        return [("y", tuple(shape[axis] for axis in case.axes), "float16")]
    if kind == "bias":
        return [("y", shape[-1:], "float32")]
    if kind == "scale":
        return [("y", (*shape[:-1], 1), "float32")]
    if kind == "where":
        return [("y", shape, "bool")]
    if kind == "take":
        return [("y", case.axes, "int64")]
    return []


def prim_func(case: MovesCase) -> Any:
    """One PrimFunc of all that `case` computes."""
    return one_prim_func_of(operands(case), lambda block, given: _value(case, block, *given), case.open)


def result(case: MovesCase) -> tuple[int, ...]:
    """Return the shape of the result."""
    return tuple(int(dim) for dim in prim_func(replace(case, open=())).params[-1].shape)


def _value(case: MovesCase, block: Any, x: Any, *rest: Any) -> Any:
    from tvm.relax import op

    def cast(value: Any, dtype: str) -> Any:
        return value if block.normalize(value).ty.dtype == dtype else op.astype(value, dtype)

    if case.kind in _FUNCTIONS:
        made = {"gelu": op.nn.gelu, "silu": op.nn.silu, "tanh": op.tanh, "exp": op.exp, "relu": op.nn.relu}
        return cast(made[case.kind](cast(x, "float32")), case.out)
    return cast(_KINDS[case.kind](case, op, cast, x, *rest), case.out)


def _append(case: MovesCase, op: Any, cast: Callable[..., Any], x: Any, cache: Any) -> Any:
    batch, heads, _, head = case.shape
    row = op.strided_slice(x, [2], [heads * head], [2 * heads * head])
    row = op.reshape(cast(row, case.dtype), (batch, heads, 1, head))
    return op.concat([cache, row], 2)


def _geglu(case: MovesCase, op: Any, cast: Callable[..., Any], x: Any) -> Any:
    half, last = case.shape[-1] // 2, len(case.shape) - 1
    value, gate = (op.strided_slice(x, [last], [at], [at + half]) for at in (0, half))
    return op.multiply(cast(value, "float32"), op.nn.gelu(cast(gate, "float32")))


def _rotary(case: MovesCase, op: Any, cast: Callable[..., Any], x: Any, cos: Any, sin: Any) -> Any:
    """Heads of the first columns, each rotated by halves: `x cos + (-x[d/2:], x[:d/2]) sin`, by heads."""
    heads, head = case.axes
    batch, rows, _ = case.shape
    taken = op.reshape(op.strided_slice(x, [2], [0], [heads * head]), (batch, rows, heads, head))
    taken = op.permute_dims(cast(taken, "float32"), [0, 2, 1, 3])
    first, second = (op.strided_slice(taken, [3], [at], [at + head // 2]) for at in (0, head // 2))
    turned = op.concat([op.negative(second), first], 3)
    tables = (op.permute_dims(table, [0, 2, 1, 3]) for table in (cos, sin))
    cosine, sine = tables
    return op.add(op.multiply(taken, cosine), op.multiply(turned, sine))


def _patches(case: MovesCase, op: Any, cast: Callable[..., Any], x: Any, token: Any, positions: Any) -> Any:
    batch, channels, high, wide = case.shape
    rows = op.permute_dims(op.reshape(x, (batch, channels, high * wide)), [0, 2, 1])
    return op.add(cast(op.concat([token, rows], 1), "float32"), positions)


def _slice(case: MovesCase, op: Any, cast: Callable[..., Any], x: Any) -> Any:
    axis, begin, end, step = case.axes
    return op.strided_slice(x, [axis], [begin], [end], [step])


def _floats(of: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    return lambda case, op, cast, x, y: of(op, cast(x, "float32"), cast(y, "float32"))


_KINDS: dict[str, Callable[..., Any]] = {
    "cast": lambda case, op, cast, x: x,
    "add": lambda case, op, cast, x, y: op.add(x, y),
    "floor_divide": lambda case, op, cast, x, y: op.floor_divide(x, y),
    "equal": lambda case, op, cast, x, y: op.equal(x, y),
    "bias": _floats(lambda op, x, y: op.add(x, y)),
    "scale": _floats(lambda op, x, y: op.multiply(x, y)),
    "where": lambda case, op, cast, x, y: op.where(y, x, op.negative(x)),
    "take": lambda case, op, cast, x, y: op.take(x, y, 0),
    "concat": lambda case, op, cast, x, y: op.concat([x, y], case.axes[0]),
    "append": _append,
    "slice": _slice,
    "flip": lambda case, op, cast, x: op.flip(x, case.axes[0]),
    "repeat": lambda case, op, cast, x: op.repeat(x, case.axes[1], case.axes[0]),
    "tile": lambda case, op, cast, x: op.tile(x, case.axes),
    "pad": lambda case, op, cast, x: op.nn.pad(x, case.axes, "constant", 1.5),
    "geglu": _geglu,
    "rotary": _rotary,
    "patches": _patches,
    "transpose": lambda case, op, cast, x: op.permute_dims(x, case.axes),
    "silu_transpose": lambda case, op, cast, x: op.permute_dims(op.nn.silu(cast(x, "float32")), case.axes),
    "transpose_add": lambda case, op, cast, x, y: op.add(
        cast(op.permute_dims(x, case.axes), "float32"), cast(y, "float32")
    ),
    "transposes_add": lambda case, op, cast, x, y: op.add(op.permute_dims(x, case.axes), op.permute_dims(y, case.axes)),
}

KINDS = (*_KINDS, *_FUNCTIONS)
_TRANSPOSED = "cuda.transposed"
_FASTEST = (
    MovesCase("append", (32, 12, 512, 64)),
    MovesCase("geglu", (32768, 5120), "float32"),
    MovesCase("transpose", (32, 640, 32, 32), "float32", "float16", (0, 2, 3, 1), _TRANSPOSED),
    MovesCase("silu_transpose", (32, 320, 32, 32), "float32", "float16", (0, 2, 3, 1), _TRANSPOSED),
    MovesCase("transpose", (32, 32, 32, 640), "float32", "float32", (0, 3, 1, 2), _TRANSPOSED),
    MovesCase("transpose", (32, 320, 32, 32), "float16", "float16", (0, 2, 3, 1), _TRANSPOSED),
    MovesCase("transpose", (4096, 4096), axes=(1, 0), rule=_TRANSPOSED),
    MovesCase("transpose", (32, 12, 128, 64), axes=(0, 1, 3, 2), rule=_TRANSPOSED),
    MovesCase("transpose", (32, 12, 128, 64), axes=(0, 2, 1, 3)),
    MovesCase("patches", (32, 768, 14, 14), "float16", "float32", rule=_TRANSPOSED),
    MovesCase("rotary", (32, 512, 4096), "float32", "float16", (16, 128)),
    MovesCase("gelu", (4096, 3072)),
    MovesCase("gelu", (128, 3072)),
    MovesCase("add", (4096, 3072)),
    MovesCase("add", (32, 1024, 640), "float32", "float32"),
    MovesCase("cast", (16384, 2048), "float32", "float16"),
    MovesCase("take", (32000, 2048), axes=(32, 512)),
)
# What the default chooses between, for the next look at it.
_OTHERS = (
    *(MovesCase("gelu", (4096, 3072), parameters={"vectors": n}) for n in (1, 2, 8)),
    *(MovesCase("gelu", (128, 3072), parameters={"lanes": n, "threads": m})
      for n, m in ((2, 256), (4, 128), (4, 256), (8, 128))),
    *(MovesCase("add", (4096, 3072), parameters={"vectors": n}) for n in (1, 4)),
    MovesCase("geglu", (32768, 5120), "float32", parameters={"lanes": 8}),
    *(MovesCase("transpose", (4096, 4096), "float16", "float16", (1, 0), _TRANSPOSED, {"tile_m": m, "tile_n": n})
      for m, n in ((32, 32), (32, 64), (64, 128), (128, 64))),
)  # fmt: skip
_OLDER = tuple(replace(case, target="cuda-sm80") for case in _FASTEST)
TIMED: tuple[MovesCase, ...] = tuple(replace(case, timed=True) for case in (*_FASTEST, *_OTHERS, *_OLDER))


def awkward(count: int, seed: int) -> list[MovesCase]:
    """Odd extents, dtypes and parameters over all kinds; the same for the same seed."""
    draw = random.Random(seed)
    targets = ("cuda-sm90", "cuda-sm80")
    made = (drawn(KINDS[i % len(KINDS)], draw) for i in range(count))
    return [replace(case, target=targets[i // len(KINDS) % 2]) for i, case in enumerate(made)]


def drawn(kind: str, draw: random.Random) -> MovesCase:
    """Return a case of `kind` with odd extents."""
    last = draw.choice((1, 2, 3, 6, 8, 20, 24, 40, 64, 72, 77, 100, 129))
    outer = [draw.choice((1, 2, 3, 5, 8, 13)) for _ in range(draw.choice((0, 1, 2)))]
    shape = (*outer, draw.choice((1, 7, 33)), last)
    case = MovesCase(kind, shape, draw.choice(_FLOATS), draw.choice(_FLOATS))
    case = replace(
        case, parameters={"lanes": draw.choice((1, 4, 16)), "vectors": draw.choice((1, 2, 4)), "threads": 128}
    )
    if "transpose" in kind or kind == "patches":
        return _drawn_transposition(case, draw)
    return _drawn_elementwise(case, draw)


def _drawn_transposition(case: MovesCase, draw: random.Random) -> MovesCase:
    sizes = (9, 16, 24, 33, 49, 64, 65, 100, 136, 200)
    point = {"tile_m": draw.choice((32, 64, 128)), "tile_n": draw.choice((32, 64)), "threads": draw.choice((128, 256))}
    case = replace(case, rule=_TRANSPOSED, parameters=point)
    if case.kind == "patches":
        shape = (draw.choice((1, 3)), draw.choice(sizes), *draw.choice(((3, 3), (7, 7), (4, 8), (14, 14))))
        return replace(case, shape=shape, out="float32")
    shape = (draw.choice((1, 2, 3)), draw.choice(sizes), draw.choice(sizes))
    if case.kind == "transpose" and draw.random() < 0.5:
        dtype = draw.choice(("int8", "uint8", "int32", "int64", "bool"))
        return replace(case, shape=shape, dtype=dtype, out=dtype, axes=(0, 2, 1))
    if draw.random() < 0.3:
        return replace(case, shape=(shape[0], shape[1], 4, shape[2]), axes=(0, 2, 3, 1))
    return replace(case, shape=shape, axes=(0, 2, 1))


def _drawn_elementwise(case: MovesCase, draw: random.Random) -> MovesCase:
    kind, shape = case.kind, case.shape
    whole = draw.choice(("int8", "uint8", "int32", "int64"))
    if kind in ("floor_divide", "equal"):
        dtype = draw.choice(("int32", "int64"))
        return replace(case, dtype=dtype, out="bool" if kind == "equal" else dtype)
    if kind in ("cast", "concat", "slice", "flip", "repeat", "tile", "take") and draw.random() < 0.5:
        case = replace(case, dtype=whole, out=draw.choice((whole, "float16", "float32", "int64")))
    if kind == "cast" and case.out == case.dtype:
        return replace(case, out="int64" if case.dtype == "int32" else "int32")
    axis = draw.randrange(len(shape))
    if kind == "concat":
        return replace(case, axes=(axis, draw.choice((1, 3, 8, 64))))
    if kind == "slice":
        begin = draw.randrange(shape[axis])
        return replace(case, axes=(axis, begin, draw.randrange(begin, shape[axis]) + 1, draw.choice((1, 1, 2, 3))))
    if kind in ("flip", "repeat"):
        return replace(case, axes=(axis, draw.choice((2, 3))))
    if kind == "tile":
        return replace(case, axes=tuple(draw.choice((1, 2, 3)) for _ in shape))
    if kind == "pad":
        return replace(case, axes=tuple(draw.choice((0, 1, 4, 8)) for _ in range(2 * len(shape))))
    if kind == "take":
        return replace(case, axes=draw.choice(((1,), (5,), (3, 7))))
    if kind == "geglu":
        return replace(case, shape=(*shape[:-1], 2 * shape[-1]))
    if kind == "append":
        return replace(case, shape=(2, draw.choice((1, 3)), draw.choice((1, 9)), draw.choice((4, 16, 20, 64))))
    if kind == "rotary":
        heads, head = draw.choice((1, 3)), draw.choice((2, 6, 16, 24, 64))
        return replace(case, shape=(2, draw.choice((1, 9)), heads * head + draw.choice((0, 1, 8))), axes=(heads, head))
    return case

"""Attention that is checked and timed: lengths, head sizes, layouts and masks, and the PrimFunc of each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["DECODING", "PAGED", "QUANTIZED", "TIMED", "UNCONFIRMED", "AttentionCase", "awkward", "prim_func"]

LAYOUTS = ("bshd", "bhsd", "merged", "flat")
_ROUNDINGS = ("scored", "rounded", "step")
ZEROS = {"uint8": 128, "int8": 3}
"""The zero points of results in bytes."""
MASKS = ("none", "keys", "full", "low", "where")


@dataclass(frozen=True)
class AttentionCase:
    """`heads` of `head` columns for `queries` and `keys` in `batch`es; `shared` heads of keys and values.

    `layout`: `bshd` and `bhsd` as the axes lie in memory, `merged` is Q, K and V as slices of one `[B, S, 3, H, D]`,
    `flat` has batch and heads as one axis. `mask` is added: of `keys` [B, 1, 1, Sk], `full` [1, 1, Sq, Sk] and `low`
    [B, H, Sq, Sk] in 16 bits; `where` chooses by a boolean [B, 1, Sq, Sk]. `causal`: the last key that query 0 sees.
    The result is [B, Sq, H * D], or as Q where `flat`.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    head: int
    shared: int = 0
    dtype: str = "float16"
    out: str = "float16"
    layout: str = "bshd"
    mask: str = "none"
    causal: int | None = None
    masked: str = "nan"
    scale: float = 0.0
    scored: float = 0.0
    """The step that logits are quantized in, to int8; 0: they stay."""
    rounded: float = 0.0
    """The step that weights are quantized in, to uint8."""
    step: float = 0.0
    """That of the result, where `out` is uint8 or int8; its zero point is 128, or 3."""
    page: int = 0
    """Rows of a page of the cache, which a table names; 0: keys and values lie in one piece."""
    parameters: Mapping[str, int] | None = field(default=None, hash=False)
    timed: bool = False
    rule: str = ""
    """The template that is meant; '' for the first that takes it."""
    target: str = "cuda-sm90"
    """Of `cuda-sm80` an H100 takes the PTX."""

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.shared or self.heads

    @property
    def factor(self) -> float:
        """The scale of the scores."""
        return self.scale or self.head**-0.5

    @property
    def pages(self) -> int:
        """Pages of the cache: as many as are read where it is timed, a prime number elsewhere."""
        return self.batch * -(-self.keys // self.page) if self.timed else 97

    def shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """The inputs: Q, K, V (or all in one), and the mask."""
        b, h, g, d = self.batch, self.heads, self.kv_heads, self.head
        lengths = ((h, self.queries), (g, self.keys), (g, self.keys))
        found: list[tuple[tuple[int, ...], str]]
        entries = -(-self.keys // self.page) if self.page else 0
        if self.layout == "merged":
            found = [((b, self.queries, (h + 2 * g) * d), self.dtype)]
        elif self.page:
            rows = (g, self.page) if self.layout == "bhsd" else (self.page, g)
            cache = ((self.pages, *rows, d), self.dtype)
            query = (b, h, self.queries, d) if self.layout == "bhsd" else (b, self.queries, h * d)
            found = [(query, self.dtype), cache, cache, ((b, entries), "int32")]
        elif self.layout == "bshd":
            found = [((b, s, n * d), self.dtype) for n, s in lengths]
        elif self.layout == "bhsd":
            found = [((b, n, s, d), self.dtype) for n, s in lengths]
        else:
            found = [((b * n, s, d), self.dtype) for n, s in lengths]
        masks = {
            "keys": ((b, 1, 1, self.keys), "float32"), "full": ((1, 1, self.queries, self.keys), "float32"),
            "low": ((b, h, self.queries, self.keys), self.dtype), "where": ((b, 1, self.queries, self.keys), "bool"),
        }  # fmt: skip
        found += [masks[self.mask]] if self.mask in masks else []
        return found + [(shape, dtype) for shape, dtype, _ in self.numbers()]

    def numbers(self) -> list[tuple[tuple[int, ...], str, float]]:
        """The scales and zero points that it quantizes by, last of the inputs: shape, dtype, and the number."""
        steps = ((self.scored, "int8", 0), (self.rounded, "uint8", 0), (self.step, self.out, ZEROS.get(self.out, 0)))
        return [each for by, dtype, zero in steps if by for each in (((), "float32", by), ((), dtype, float(zero)))]

    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        if self.layout == "flat":
            return (self.batch * self.heads, self.queries, self.head)
        return (self.batch, self.queries, self.heads * self.head)


def prim_func(case: AttentionCase) -> Any:
    """The PrimFunc of `case`, as the graph passes describe attention."""
    from functools import partial

    from tvm import te

    from schedules.cuda.attention.form import MASKED
    from service.passes.kernels.attention_compute import attention

    inputs = [te.placeholder(shape, dtype, name=f"x{i}") for i, (shape, dtype) in enumerate(case.shapes())]
    result = partial(attention, spec=_spec(case))(*inputs)
    func = te.create_prim_func([*inputs, result])
    return func.with_attr(MASKED, case.masked)


def _spec(case: AttentionCase) -> Any:
    from tvm import tirx

    from service.passes.kernels.attention_compute import AttentionSpec
    from service.passes.kernels.requantize import dequantized, quantized

    b, h, g, d = case.batch, case.heads, case.kv_heads, case.head
    flat = case.layout == "flat"

    def element(which: int) -> Any:
        def load(tensors: Any, batch: Any, s: Any, column: Any) -> Any:
            head = batch[-1] if which == 0 else tirx.floordiv(batch[-1], h // g)
            if case.page and which:
                entry = tensors[3](batch[0], tirx.floordiv(s, case.page)).astype("int64")
                page = tirx.Max(tirx.Min(entry, tirx.const(case.pages - 1, "int64")), tirx.const(0, "int64"))
                row = tirx.floormod(s, case.page)
                value = tensors[which](page, *((head, row) if case.layout == "bhsd" else (row, head)), column)
            elif case.layout == "merged":
                first = (0, h * d, (h + g) * d)[which]
                value = tensors[0](batch[0], s, first + head * d + column)
            elif case.layout == "bshd":
                value = tensors[which](batch[0], s, head * d + column)
            elif case.layout == "bhsd":
                value = tensors[which](batch[0], head, s, column)
            else:
                value = tensors[which](head, s, column)
            return value.astype("float32")

        return load

    def logit(tensors: Any, score: Any, batch: Any, m: Any, n: Any) -> Any:
        value = score * tirx.const(case.factor, "float32")
        zero = tirx.const(0, "int64")
        if case.scored:
            value = dequantized(quantized(value, *by(tensors, "scored"), "int8"), *by(tensors, "scored"))
        if case.mask != "none":
            where = {
                "keys": lambda: (batch[0], zero, zero, n), "full": lambda: (zero, zero, m, n),
                "low": lambda: (batch[0], batch[1], m, n), "where": lambda: (batch[0], zero, m, n),
            }[case.mask]()  # fmt: skip
            mask = tensors[len(case.shapes()) - len(case.numbers()) - 1](*where)
            lowest = tirx.const(-3.4028234663852886e38, "float32")
            value = tirx.Select(mask, value, lowest) if case.mask == "where" else value + mask.astype("float32")
        if case.causal is not None:
            value = tirx.Select(n <= m + case.causal, value, tirx.const(float("-inf"), "float32"))
        return value

    def place(*at: Any) -> Any:
        if flat:
            return [at[0]], at[1], at[2]
        return [at[0], tirx.floordiv(at[2], d)], at[1], tirx.floormod(at[2], d)

    def by(tensors: Any, name: str) -> tuple[Any, Any]:
        before = _ROUNDINGS[: _ROUNDINGS.index(name)]
        at = 2 * sum(getattr(case, each) > 0 for each in before)
        scale, zero = tensors[len(case.shapes()) - len(case.numbers()) + at :][:2]
        return scale(), zero()

    def rounded(tensors: Any, weight: Any) -> Any:
        return dequantized(quantized(weight, *by(tensors, "rounded"), "uint8"), *by(tensors, "rounded"))

    def finish(tensors: Any, value: Any) -> Any:
        return quantized(value, *by(tensors, "step"), case.out)

    return AttentionSpec(
        batch=(b * h,) if flat else (b, h),
        queries=case.queries,
        keys=case.keys,
        depth=d,
        width=d,
        masked=case.masked,
        query=element(0),
        key=element(1),
        value=element(2),
        logit=logit,
        shape=case.result(),
        place=place,
        dtype=case.out,
        rounded=rounded if case.rounded else None,
        finish=finish if case.step else None,
    )


def awkward(count: int, seed: int) -> list[AttentionCase]:
    """Attention of odd sizes, with parameters all over the space; the same for the same seed."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        dtype, layout = draw.choice(("float16", "bfloat16")), draw.choice(LAYOUTS)
        queries = draw.choice((1, 3, 17, 64, 65, 128, 197, 200, 333, 511, 513))
        keys = queries if layout == "merged" else draw.choice((1, 5, 31, 64, 65, 100, 197, 256, 515, 777))
        shared = draw.choice((1, 2, 4))
        mask = draw.choice(("none", "none", *MASKS)) if layout != "flat" else "none"
        found.append(
            AttentionCase(
                batch=draw.choice((1, 2, 3)), heads=4, shared=shared, queries=queries, keys=keys,
                head=draw.choice((8, 24, 32, 40, 64, 64, 80, 96, 128, 128, 160, 256)), dtype=dtype,
                out=draw.choice((dtype, dtype, "float32")), layout=layout, mask=mask,
                causal=draw.choice((None, None, 0, keys - queries)), masked=draw.choice(("nan", "zero", "never_nan")),
                parameters={"consumers": draw.choice((1, 2, 3)), "block": draw.choice((32, 64, 96, 128, 160)),
                            "per_sm": draw.choice((1, 1, 2))},
            )
        )  # fmt: skip
    return found


def _timed() -> list[AttentionCase]:
    long, wide = AttentionCase(1, 16, 4096, 4096, 64), AttentionCase(4, 32, 2048, 2048, 128)
    bert = AttentionCase(32, 12, 128, 128, 64, layout="merged")
    vit = AttentionCase(32, 12, 197, 197, 64, layout="merged")
    gpt2 = AttentionCase(32, 12, 512, 512, 64, layout="merged", causal=0)
    return [
        long, replace(long, causal=0), wide, replace(wide, causal=0),
        *(replace(each, batch=batch) for each in (bert, vit, gpt2) for batch in (1, 32)),
        replace(bert, mask="keys"), replace(bert, mask="where"),
        AttentionCase(2, 32, 2048, 2048, 64, shared=8, causal=0), AttentionCase(2, 16, 2048, 2048, 96),
        AttentionCase(2, 16, 1024, 1024, 256), AttentionCase(1, 8, 4096, 77, 64),
        AttentionCase(1, 16, 16384, 16384, 128, causal=0),
    ]  # fmt: skip


_STEPS = (
    AttentionCase(1, 32, 1, 4096, 128, shared=8), AttentionCase(32, 32, 1, 4096, 128, shared=8),
    AttentionCase(1, 12, 1, 512, 64), AttentionCase(32, 12, 1, 512, 64), AttentionCase(1, 16, 1, 16384, 128, shared=8),
    AttentionCase(4, 16, 1, 4096, 64), AttentionCase(1, 8, 16, 8192, 128, shared=8),
)  # fmt: skip
DECODING: tuple[AttentionCase, ...] = tuple(replace(case, layout="bhsd", timed=True) for case in _STEPS)
"""Few queries to the many keys of a cache, which lies by heads."""

_CROWDED = (AttentionCase(32, 12, 16, 512, 64, layout="bhsd"), AttentionCase(32, 12, 1, 2048, 64, layout="bhsd"))
"""More tiles of few queries than SMs, where sharing keys may not pay."""

TIMED: tuple[AttentionCase, ...] = tuple(replace(case, timed=True) for case in (*DECODING, *_CROWDED, *_timed()))


def _odd_steps(count: int, seed: int) -> list[AttentionCase]:
    """Few queries and odd numbers of keys, with every kind of mask, at points all over the space."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        queries, keys = draw.choice((1, 1, 3, 16, 40, 64)), draw.choice((256, 257, 511, 777, 1000, 2049, 4096))
        dtype = draw.choice(("float16", "bfloat16"))
        found.append(
            AttentionCase(
                batch=draw.choice((1, 2, 3)), heads=8, shared=draw.choice((1, 2, 8)), queries=queries, keys=keys,
                head=draw.choice((8, 40, 64, 96, 128, 128, 256)), dtype=dtype,
                out=draw.choice((dtype, "float32")), layout=draw.choice(("bshd", "bhsd")), mask=draw.choice(MASKS),
                causal=draw.choice((None, None, keys - queries, keys // 3)), masked=draw.choice(("nan", "zero")),
                parameters={"splits": draw.choice((2, 4, 8)), "block": draw.choice((64, 128))},
            )
        )  # fmt: skip
    return found


_BOTH = ("cuda.attention_sm90", "cuda.attention_sm80")
_POINTS = ({"splits": 4, "block": 128}, {"splits": 8, "block": 64}, {"splits": 8, "block": 128})

_LAYER = AttentionCase(32, 12, 128, 128, 64, layout="merged", scored=0.05, rounded=0.004, step=0.02, out="uint8")
QUANTIZED: tuple[AttentionCase, ...] = (
    *(replace(_LAYER, batch=batch, rule=rule, timed=True) for batch in (1, 32) for rule in _BOTH),
    *(replace(_LAYER, batch=4, queries=384, keys=384, rule="cuda.attention_sm80", timed=True, mask=mask)
      for mask in ("none", "keys")),
    *(AttentionCase(2, 3, queries, keys, head, scored=0.04, rounded=0.003, step=step, out=out, mask=mask, rule=rule,
                    causal=causal, dtype=dtype, masked=masked)
      for queries, keys, head, step, out, mask, causal, dtype, masked, rule in (
          (100, 77, 64, 0.02, "int8", "keys", None, "float16", "nan", "cuda.attention_sm90"),
          (65, 128, 40, 0.0, "float32", "none", 63, "bfloat16", "zero", "cuda.attention_sm90"),
          (130, 31, 96, 0.03, "uint8", "full", None, "bfloat16", "never_nan", "cuda.attention_sm90"),
          (1, 128, 128, 0.02, "int8", "none", None, "float16", "nan", "cuda.attention_sm90"),
          (333, 200, 24, 0.0, "float16", "where", None, "float16", "nan", "cuda.attention_sm80"),
          (17, 515, 128, 0.02, "uint8", "keys", 400, "float16", "nan", "cuda.attention_sm80"),
          (64, 129, 256, 0.05, "int8", "full", None, "bfloat16", "zero", "cuda.attention_sm80"),
          (3, 1, 8, 0.02, "uint8", "none", None, "float16", "nan", "cuda.attention_sm80"),
      )),
)  # fmt: skip
"""Attention of a quantized network, by both templates: in one step of keys, and of more in two passes over them."""

_STEP = AttentionCase(16, 32, 1, 4096, 128, shared=8, page=16)
PAGED: tuple[AttentionCase, ...] = (
    *(replace(_STEP, page=page, layout=layout, timed=True, rule="cuda.decoding_sm90")
      for page, layout in ((16, "bshd"), (16, "bhsd"), (64, "bshd"), (256, "bhsd"))),
    replace(_STEP, batch=1, timed=True, rule="cuda.decoding_sm90"),
    replace(_STEP, mask="keys", timed=True, rule="cuda.decoding_sm90"),
    replace(_STEP, timed=True, rule="cuda.attention_sm80"),
    *(AttentionCase(2, 8, queries, keys, head, shared=shared, page=page, layout=layout, mask=mask, rule=rule,
                    dtype=dtype, causal=causal, masked=masked)
      for queries, keys, head, shared, page, layout, mask, dtype, causal, masked, rule in (
          (1, 320, 128, 2, 16, "bshd", "keys", "float16", None, "nan", "cuda.decoding_sm90"),
          (1, 1000, 64, 8, 8, "bhsd", "none", "bfloat16", None, "nan", "cuda.decoding_sm90"),
          (3, 504, 96, 4, 24, "bshd", "low", "float16", 501, "zero", "cuda.decoding_sm90"),
          (64, 2048, 128, 1, 256, "bhsd", "where", "float16", None, "nan", "cuda.decoding_sm90"),
          (1, 264, 256, 1, 64, "bshd", "low", "bfloat16", None, "zero", "cuda.decoding_sm90"),
          (1, 50, 40, 2, 16, "bhsd", "keys", "float16", None, "nan", "cuda.attention_sm80"),
          (5, 333, 64, 4, 20, "bshd", "none", "bfloat16", 328, "nan", "cuda.attention_sm80"),
          (130, 257, 128, 8, 64, "bhsd", "full", "float16", None, "zero", "cuda.attention_sm80"),
          (1, 7, 8, 1, 1000, "bshd", "none", "float16", None, "nan", "cuda.attention_sm80"),
      )),
)  # fmt: skip
"""Attention over the pages of a cache; of a table's entries some are not in it."""

_GROUPED: tuple[AttentionCase, ...] = tuple(
    replace(AttentionCase(16, 32, 1, 4096, 128, shared=8, layout="bhsd", mask=mask), timed=True)
    for mask in ("keys", "low")
)
"""Grouped heads with a mask, of which each tile has those that share keys."""

UNCONFIRMED: tuple[AttentionCase, ...] = tuple(
    replace(case, rule=case.rule or "cuda.decoding_sm90")
    for case in (
        *QUANTIZED,
        *PAGED,
        *_GROUPED,
        *(replace(case, timed=True) for case in (*DECODING, *_CROWDED)),
        *(replace(case, rule="cuda.attention_sm90", timed=True) for case in (*DECODING, *_CROWDED)),
        *(replace(case, parameters=point) for case in DECODING[:4] for point in _POINTS),
        *_odd_steps(24, 0),
    )
)
"""Few queries by `cuda.decoding_sm90` even where another rule is taken to be faster, and by that other one."""

"""Attention that is checked and timed: lengths, head sizes, layouts, masks, quantizations and pages."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.gpu.attention_case import LAYOUTS, MASKS, AttentionCase, prim_func

__all__ = [
    "DECODING", "LAYOUTS", "MASKS", "PAGED", "QUANTIZED", "TIMED", "UNCONFIRMED", "AttentionCase", "awkward",
    "prim_func",
]  # fmt: skip


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
                parameters={"splits": draw.choice((2, 4, 8)), "block": draw.choice((64, 128)),
                            "share": draw.choice((1, 2))},
            )
        )  # fmt: skip
    return found


_BOTH = ("cuda.attention_sm90", "cuda.attention_sm80")
_POINTS = (
    {"splits": 4, "block": 128, "share": 1},
    {"splits": 8, "block": 64, "share": 1},
    {"splits": 8, "block": 128, "share": 1},
    {"splits": 2, "block": 64, "share": 2},
)

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

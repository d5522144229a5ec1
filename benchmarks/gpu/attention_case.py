"""One attention that is checked and timed: its shape, layout, mask and quantizations, and its PrimFunc."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["LAYOUTS", "MASKS", "AttentionCase", "prim_func"]

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
    open: tuple[str, ...] = ()
    """Which of `batch`, `queries` and `keys` the kernel knows at the call alone."""

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

    from relaxc.schedules.cuda.attention.form import MASKED
    from relaxc.service.passes.kernels.attention_compute import attention

    case = _opened(case)
    inputs = [te.placeholder(shape, dtype, name=f"x{i}") for i, (shape, dtype) in enumerate(case.shapes())]
    result = partial(attention, spec=_spec(case))(*inputs)
    func = te.create_prim_func([*inputs, result])
    return func.with_attr(MASKED, case.masked)


def _opened(case: AttentionCase) -> Any:
    """The case with variables for what is known at the call: in a merged product keys are as many as queries."""
    from tvm import tirx

    made = {name: tirx.Var(name, "int64") for name in case.open}
    if case.layout == "merged" and "queries" in made:
        made["keys"] = made["queries"]
    return replace(case, **made)


def _spec(case: AttentionCase) -> Any:
    from tvm import tirx

    from relaxc.service.passes.kernels.attention_compute import AttentionSpec
    from relaxc.service.passes.kernels.requantize import dequantized, quantized

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

    def size(value: Any) -> Any:
        """As the passes have it where there are symbols: 64 bits, or every index is a cast."""
        return tirx.const(value, "int64") if case.open and isinstance(value, int) else value

    return AttentionSpec(
        batch=(b * h,) if flat else (size(b), size(h)),
        queries=size(case.queries),
        keys=size(case.keys),
        depth=size(d),
        width=size(d),
        masked=case.masked,
        query=element(0),
        key=element(1),
        value=element(2),
        logit=logit,
        shape=tuple(map(size, case.result())),
        place=place,
        dtype=case.out,
        rounded=rounded if case.rounded else None,
        finish=finish if case.step else None,
    )

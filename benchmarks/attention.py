"""Attention of bfloat16 by each instruction that a CPU has, beside the other ways and torch's.

    python -m benchmarks.attention build FOLDER [--target auto]
    python -m benchmarks.attention run FOLDER [--seconds 3] [--threads 2]

As `benchmarks.tiles` it is built here and runs elsewhere, too: `--target sapphirerapids` is for CPUs with AMX. `tiles`
and `pairs` multiply pairs of bfloat16, `floats` read float32, as models have it without them, and `widened` the same
operands as the others. Each result is compared with float64 first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tile_bounds import Gauge, build_gauge
from benchmarks.tiles import taken, use_threads

__all__ = ["build", "main", "run"]

SHAPES = {
    "BERT-base": (12, 128, 64, False),
    "ViT-B/16": (12, 197, 64, False),
    "GPT-2 512": (12, 512, 64, True),
    "GPT-2 1024": (12, 1024, 64, True),
}
"""Heads, tokens, columns of a head, whether causal."""


def build(folder: Path, name: str) -> None:
    """Write the kernels for the target `name` with two cores, by the best plan of each way that it has."""
    import tvm

    from relaxc.schedules.cpu import planning
    from relaxc.schedules.cpu.attention import attention_plan, word_plan
    from relaxc.schedules.cpu.common.tile_registers import MATRIX
    from relaxc.schedules.hardware import cpu_of
    from relaxc.schedules.operators import Attention
    from relaxc.service.lowering import pipeline
    from relaxc.service.lowering.target import resolve, to_tvm
    from relaxc.service.lowering.vector_functions import VECTOR_MATH

    pipeline.register()
    spec = resolve(name).to_dict()
    taken = {key: spec[key] for key in ("kind", "mcpu", "features")}
    target = to_tvm(resolve(json.dumps({**taken, "name": spec["name"], "cores": 2})))
    cpu, rule = cpu_of(target), planning.TEMPLATES["cpu.attention"]
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for title, (heads, tokens, depth, causal) in SHAPES.items():
        sizes = {"batch": 1, "heads": heads, "queries": tokens, "keys": tokens, "depth": depth, "width": depth}
        logit = ("where.mn",) if causal else ()
        low = Attention(**sizes, operands=("bfloat16",) * 3, logit=logit)
        ways: dict[str, tuple[Attention, dict[str, int] | None]] = {
            "floats": (wide := Attention(**sizes, logit=logit), attention_plan.default(wide, cpu)),
            "widened": (low, attention_plan.default(low, cpu)),
        }
        for way, by_tiles in (("pairs", False), ("tiles", True)):
            points = (point for point in word_plan.points(low, cpu) if (MATRIX in point) == by_tiles)
            ways[way] = low, min(points, key=lambda point: word_plan.estimate(low, point, cpu), default=None)
        for way, (op, parameters) in ways.items():
            if parameters is None:
                continue
            func = _prim_func(op, planning.planned(op, rule.name, parameters, cpu), causal=causal)
            made = rule.emit(func, op, parameters, cpu).with_attr({"tirx.is_scheduled": True, VECTOR_MATH: True})
            library = f"{title.replace('/', '').replace(' ', '_')}_{way}.so"
            tvm.compile(made, target, tir_pipeline=pipeline.NAME).export_library(str(folder / library))
            rows.append({"title": title, "way": way, "library": library, "parameters": parameters})
    build_gauge(folder)
    (folder / "attention.json").write_text(json.dumps(rows))


def _prim_func(op: Any, plan: Any, *, causal: bool) -> Any:
    """`out[m, h * e]` of `qkv[m, 3 * h * d]`, both with heads merged, as models have them."""
    from tvm import te, tirx

    from relaxc.schedules.cpu.attention.form import MASKED, mask_room
    from relaxc.service.passes.kernels.attention_compute import AttentionSpec, attention

    merged = op.heads * op.depth
    tensors = [te.placeholder((1, op.queries, 3 * merged), op.operands[0], "qkv")]
    if causal:
        room = mask_room(op.queries, 64)
        tensors.append(te.placeholder((op.keys, op.queries + room), "bool", "mask"))

    def operand(at: int) -> Callable[..., Any]:
        return lambda given, b, row, d: given[0][b[0], row, at * merged + b[1] * op.depth + d].astype("float32")

    query = operand(0)
    spec = AttentionSpec(
        batch=(1, op.heads),
        queries=op.queries,
        keys=op.keys,
        depth=op.depth,
        width=op.width,
        masked="nan",
        query=lambda *at: query(*at) * tirx.const(op.depth**-0.5, "float32"),
        key=operand(1),
        value=operand(2),
        logit=(lambda given, score, b, m, n: tirx.Select(given[1][n, m], score, tirx.const(float("-inf"), "float32")))
        if causal
        else None,
        shape=(1, op.queries, merged),
        place=lambda b, m, x: ([b, x // op.width], m, x % op.width),
        dtype=op.operands[0],
        plan=plan,
    )
    func = te.create_prim_func([*tensors, attention(*tensors, spec=spec)])
    return func.with_attr({MASKED: "nan", "global_symbol": "main"})


def run(folder: Path, seconds: float, threads: int) -> None:
    """Print the medians of each attention, and what other ways take of the first's time."""
    from relaxc.service import machine

    use_threads(threads)
    features = machine.cpu().features  # to read these asks the kernel for tile registers
    rows = json.loads((folder / "attention.json").read_text())
    rows = [row for row in rows if row["way"] != "tiles" or "amx-bf16" in features]
    gauge = Gauge(folder) if "amx-bf16" in features else None
    for title, (heads, tokens, depth, causal) in SHAPES.items():
        ways = _ways(folder, [row for row in rows if row["title"] == title], heads, tokens, depth, causal=causal)
        first = next(way for way in ("tiles", "pairs", "widened") if way in ways)
        said = taken(ways, first, seconds, 2 * heads * tokens * tokens * depth, gauge)
        print(f"{title}: {first} {said}")


def _ways(
    folder: Path, rows: list[dict[str, Any]], heads: int, tokens: int, depth: int, *, causal: bool
) -> dict[str, Callable[[], Any]]:
    """The calls that compute one attention; raise ValueError where one is wrong."""
    import torch

    from relaxc.service.runtime.library import load_library

    sdpa = torch.nn.functional.scaled_dot_product_attention
    qkv = torch.randn(1, tokens, 3 * heads * depth, generator=torch.Generator().manual_seed(0)).bfloat16()
    q, k, v = (each.view(1, tokens, heads, depth).transpose(1, 2) for each in qkv.chunk(3, dim=-1))
    want = sdpa(q.double(), k.double(), v.double(), is_causal=causal).transpose(1, 2).reshape(1, tokens, -1)
    mask = torch.ones(tokens, tokens, dtype=torch.bool).tril().t()
    mask = torch.nn.functional.pad(mask, (0, -tokens % 64)).contiguous()
    found: dict[str, Callable[[], Any]] = {}
    for row in rows:
        wide = row["way"] == "floats"
        given = [qkv.float() if wide else qkv, *([mask] if causal else [])]
        out = torch.empty(1, tokens, heads * depth, dtype=torch.float32 if wide else torch.bfloat16)
        kernel = load_library(folder / row["library"])["main"]
        kernel(*given, out)
        if float((out.double() - want).abs().max()) > 0.02:
            raise ValueError(f"{row['library']} computes something else")
        found[row["way"]] = partial(kernel, *given, out)
    found["torch"] = partial(sdpa, q, k, v, is_causal=causal)
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each attention")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.step == "build":
        build(arguments.folder, arguments.target)
    else:
        run(arguments.folder, arguments.seconds, arguments.threads)


if __name__ == "__main__":
    main()

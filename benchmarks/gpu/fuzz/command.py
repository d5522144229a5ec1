"""The arguments of `python -m benchmarks.gpu random`, and what it does."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.fuzz.draw import draw
from benchmarks.gpu.fuzz.report import is_bad, report
from benchmarks.gpu.fuzz.run import Plan, fuzz
from benchmarks.gpu.plan import TOOLS

__all__ = ["add_arguments", "random_kernels"]

_SANITIZED = ("cuda.attention_sm90", "cuda.decoding_sm90")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which cases, where, with what and for how long."""
    parser.add_argument("folder", type=Path, nargs="?", help="where results.jsonl is, and goes on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the first index")
    parser.add_argument("--count", type=int, default=2000, help="cases; under a sanitizer, of each template")
    parser.add_argument("--target", default="", help="those of the cases that are drawn for it: cuda-sm80, cuda-sm90")
    parser.add_argument("--family", default="", help="those of this family: reduced, rows, gemm")
    parser.add_argument("--budget", type=float, default=560.0, help="seconds in all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that compile")
    parser.add_argument("--runners", type=int, default=3, help="processes that check")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: PrimFuncs without a schedule")
    parser.add_argument("--replay", metavar="SEED:INDEX", help="only this case, its row printed")
    parser.add_argument("--sanitize", action="append", choices=TOOLS, default=[], help="by compute-sanitizer instead")
    parser.add_argument("--rule", action="append", default=[], help="under a sanitizer: RULE or RULE:FAMILY")


def random_kernels(args: argparse.Namespace) -> int:
    """Do what the arguments say; status 1 where a kernel is wrong or failed, or none could be checked."""
    if args.replay:
        return _replay(args)
    if args.folder is None:
        raise SystemExit("a folder is needed")
    if args.sanitize:
        return _sanitize(args)
    indices = range(args.first, args.first + args.count)
    cases = [draw(args.seed, index) for index in indices]
    wanted = [c.index for c in cases if args.target in ("", c.target) and args.family in ("", c.family)]
    rows = fuzz(_plan(args, args.folder, args.seed, wanted))
    print(report(rows, len(wanted)))
    return int(not rows or any(map(is_bad, rows)))


def _plan(args: argparse.Namespace, folder: Path, seed: int, indices: Sequence[int]) -> Plan:
    return Plan(folder, seed, indices, args.device, args.budget, args.workers, args.runners)


def _replay(args: argparse.Namespace) -> int:
    seed, index = map(int, args.replay.split(":"))
    print(draw(seed, index))
    with TemporaryDirectory() as folder:
        rows = fuzz(_plan(args, Path(folder), seed, range(index, index + 1)))
    for row in rows:
        print(json.dumps(row, indent=1))
    return int(not rows or any(map(is_bad, rows)))


def _sanitize(args: argparse.Namespace) -> int:
    from benchmarks.gpu.fuzz.sanitize import sanitize

    rows = sanitize(
        args.folder, seed=args.seed, tools=args.sanitize, rules=args.rule or _SANITIZED, count=args.count,
        budget_s=args.budget, workers=args.workers,
    )  # fmt: skip
    return int(any(map(is_bad, rows)))

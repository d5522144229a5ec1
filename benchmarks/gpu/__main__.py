"""`python -m benchmarks.gpu make|run FOLDER`: kernels made here or anywhere, checked and timed on the GPU machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu.cases import AWKWARD, TIMED, awkward


def main() -> int:
    """Makes or runs; status 1 where a number is wrong."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__)
    parser.add_argument("verb", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--awkward", type=int, help="that many odd shapes and no timed ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that make kernels")
    parser.add_argument("--only-check", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.verb == "make":
        from benchmarks.gpu.make import make

        cases = awkward(args.awkward, args.seed) if args.awkward else [*TIMED, *AWKWARD]
        make(cases, args.folder, jobs=args.jobs)
        return 0
    from benchmarks.gpu.run import run

    rows = run(args.folder, only_check=args.only_check)
    print(_device(), *(_line(row) for row in rows), sep="\n")
    if args.json:
        args.json.write_text(json.dumps({"device": _device(), "rows": rows}))
    return int(any(not row.get("right") for row in rows))


def _line(row: dict[str, object]) -> str:
    shape = f"{row['batch']}x({row['m']}, {row['n']}, {row['k']})"
    what = f"{shape} {row['dtype']} {row['epilogue']} B {'kn' if row['n_major'] else 'nk'}"
    if not row.get("right"):
        return f"WRONG {what} {row['parameters']}: {row.get('failed') or row.get('error')}"
    if "us" not in row:
        return f"right {what}"
    return f"{row['ratio']:.3f} {row['tflops']:.0f} TFLOP/s {what} {row['us']} {row['parameters']}"


def _device() -> str:
    import torch

    driver = Path("/proc/driver/nvidia/version")
    words = driver.read_text().split("\n")[0] if driver.exists() else "no driver version"
    return f"{torch.cuda.get_device_name()}; {words}; torch {torch.__version__}; {datetime.now(UTC):%Y-%m-%d}"


if __name__ == "__main__":
    sys.exit(main())

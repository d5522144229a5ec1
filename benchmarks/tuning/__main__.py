"""Tunes four operators with relaxc and with upstream's MetaSchedule, and times their best kernels in turns.

    python -m benchmarks.tuning                             all cases; upstream takes about 8 minutes for each
    python -m benchmarks.tuning --tasks gemm --upstream-trials 64

Each tuner runs in processes of its own, one after the other, on a machine that should do nothing else. What is done is
in the folder --out and is not repeated: run it again to go on. Prints a JSON line a case and leaves curves.png.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.tuning.curve import Curve, read_curve
from relaxc.service.tuning.plan import AT_ROOFLINE

_SIDES = ("ours", "upstream")
NAMES = ("gemm", "conv3x3", "conv1x1", "depthwise")
MORE_TRIALS_A_MINUTE = 4.0
"""How many times upstream's trials a minute are wanted."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", default=",".join(NAMES), metavar="NAMES", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--trials", type=int, default=64, help="of relaxc")
    parser.add_argument("--upstream-trials", type=int, default=256, help="of upstream; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/tuning"), metavar="DIR")
    parser.add_argument("--again", action="store_true", help="repeat what is done")
    return parser


def _curve(side: str, case: str, trials: int, arguments: argparse.Namespace) -> Curve:
    """The curve of one tuner, from its file if it was made before."""
    path = arguments.out / f"{case}.{side}.json"
    if arguments.again or not path.exists():
        command = [sys.executable, "-m", f"benchmarks.tuning.{side}", case]
        command += ["--trials", str(trials), "--seed", str(arguments.seed), "--out", str(arguments.out)]
        print(f"{case}: {side}, {trials} trials", file=sys.stderr, flush=True)
        with (arguments.out / f"{case}.{side}.log").open("w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=log)
    return read_curve(path)


def _row(curves: list[Curve], arguments: argparse.Namespace) -> dict[str, Any]:
    """What came of one case; the times of the kernels are measured now."""
    paths = [str(arguments.out / f"{curve.case}.{side}.json") for curve, side in zip(curves, _SIDES, strict=False)]
    command = [sys.executable, "-m", "benchmarks.tuning.duel", *paths]
    times = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ours, *others = curves
    row: dict[str, Any] = {
        "case": ours.case,
        "ms": times,
        "trials": {curve.tuner: curve.trials for curve in curves},
        "seconds": {curve.tuner: round(curve.seconds, 1) for curve in curves},
        "trials_per_minute": {curve.tuner: round(curve.per_minute, 1) for curve in curves},
        "stopped": ours.ended,
        "trials_to_roofline": ours.trials_to(AT_ROOFLINE),
    }
    for upstream in others:
        row["faster"] = round(times[upstream.tuner] / times[ours.tuner], 2)
        row["pace"] = round(ours.per_minute / upstream.per_minute, 2)
        row["holds"] = row["faster"] >= 1 and row["pace"] >= MORE_TRIALS_A_MINUTE
    return row


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    from benchmarks.tuning.chart import draw

    parser = _parser()
    arguments = parser.parse_args(argv)
    wanted = arguments.tasks.split(",")
    if unknown := sorted(set(wanted) - set(NAMES)):
        parser.error(f"there is no task {', '.join(unknown)}; there are {', '.join(NAMES)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[Curve]] = {}
    for case in wanted:
        found[case] = [_curve("ours", case, arguments.trials, arguments)]
        if arguments.upstream_trials:
            found[case].append(_curve("upstream", case, arguments.upstream_trials, arguments))
        print(json.dumps(_row(found[case], arguments)), flush=True)
        draw(found, arguments.out / "curves.png")
    print(f"curves: {arguments.out / 'curves.png'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

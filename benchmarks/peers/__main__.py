"""Times models on ours and on other runtimes, each in a process of its own, in turns on the same threads.

python -m benchmarks.peers                        the cases that the project's bars are stated for
python -m benchmarks.peers resnet50 bert,batch=8  these; or the path of an ONNX file
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.peers import cases, table
from benchmarks.peers.report import CaseReport, summarize
from benchmarks.peers.rounds import Plan, measure, prepare
from benchmarks.peers.runtimes import OURS, RUNTIMES
from benchmarks.peers.workers import Failed
from tests import zoo


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="NAME[,batch=N][,tokens=N][,int8|bf16][,x86-64-v3] of tests/zoo, or FILE.onnx",
    )
    parser.add_argument("--peers", help=f"of {','.join(list(RUNTIMES)[1:])}, with commas between; by default all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, help="for models that do not say theirs")
    parser.add_argument("--tokens", type=int, help="for models that do not say theirs")
    parser.add_argument("--size", choices=get_args(zoo.Size), default="full", help="of the zoo's models")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each runtime")
    parser.add_argument("--turn", type=float, default=0.4, metavar="S", help="seconds of a turn, about")
    parser.add_argument("--work", type=Path, help="folder of what was compiled; a second run is quick")
    parser.add_argument("--out", type=Path, help="folder for results.jsonl and peers.png")
    parser.add_argument("--prepare", action="store_true", help="export and compile only, which a busy machine may do")
    parser.add_argument("--resume", action="store_true", help="keep the cases that are in --out already")
    return parser


def _plan(arguments: argparse.Namespace) -> tuple[list[cases.Case], Plan]:
    """What to time and how. ValueError where it cannot be understood."""
    chosen = list(RUNTIMES)[1:] if arguments.peers is None else [name for name in arguments.peers.split(",") if name]
    unknown = [name for name in chosen if name not in RUNTIMES]
    if unknown:
        raise ValueError(f"there is no runtime {', '.join(unknown)}; there are {', '.join(RUNTIMES)}")
    sizes: dict[str, Any] = {"batch": arguments.batch, "tokens": arguments.tokens, "size": arguments.size}
    wanted = [cases.parse(text, **sizes) for text in arguments.models] or list(cases.STANDARD)
    plan = Plan([OURS, *chosen], arguments.threads, arguments.rounds, arguments.turn)
    return wanted, plan


def _kept(out: Path | None, resume: bool) -> dict[str, CaseReport]:
    path = out / "results.jsonl" if out else None
    if path is None or not resume or not path.exists():
        return {}
    reports = map(CaseReport.from_dict, map(json.loads, path.read_text().splitlines()))
    return {report.case: report for report in reports}


def _measure_all(
    wanted: list[cases.Case], plan: Plan, arguments: argparse.Namespace, console: Console
) -> list[CaseReport]:
    """The reports, each printed and written when it is there. The bar is drawn between turns only."""
    work = arguments.work or Path.home() / ".cache" / "relaxc-bench"
    os.environ.setdefault("RELAXC_CACHE_DIR", str(work / "relaxc"))
    kept, reports = _kept(arguments.out, arguments.resume), []
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    steps = 1 + 2 * len(plan.runtimes) + plan.rounds
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(wanted) * steps)
        for index, case in enumerate(wanted):

            def step(what: str, case: cases.Case = case) -> None:
                progress.update(bar, advance=1, description=f"{case.label}: {what}", refresh=True)

            if arguments.prepare:
                _, failed = prepare(case, work / case.key, plan, step)
                console.print("\n".join([f"{case.label} is prepared", *map(escape, failed.values())]))
                continue
            report = kept.get(case.label) or measure(case, work / case.key, plan, step)
            progress.update(bar, completed=(index + 1) * steps, refresh=True)
            reports.append(report)
            print(json.dumps(report.to_dict()), flush=True)
            console.print(table.details(report))
            if arguments.out:
                lines = [json.dumps(each.to_dict()) + "\n" for each in reports]
                (arguments.out / "results.jsonl").write_text("".join(lines))
    return reports


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; 2 where it makes no sense, 1 where ours failed."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    console = Console(stderr=True, width=None if sys.stderr.isatty() else 150)
    try:
        wanted, plan = _plan(arguments)
    except ValueError as error:
        parser.error(str(error))
    try:
        reports = _measure_all(wanted, plan, arguments, console)
    except Failed as error:
        console.print(f"[red]{escape(str(error))}")
        return 1
    if not reports:
        return 0
    summary = summarize(reports)
    print(json.dumps({"summary": asdict(summary)}), flush=True)
    console.print(table.overview(reports))
    for line in table.verdicts(summary):
        console.print(line)
    if arguments.out:
        from benchmarks.peers.chart import draw

        draw(reports, arguments.out / "peers.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

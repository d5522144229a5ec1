"""`relaxc tune`: better parameters for a model's kernels, into records that compiles use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli import report
from relaxc.service.cli.options import (
    Json,
    Model,
    OptLevel,
    Plugins,
    PrecisionName,
    Shapes,
    Target,
    Threads,
    Verbose,
    options_for,
)
from relaxc.service.cli.output import console, facts, print_json, seconds, table
from relaxc.service.cli.remote import Remote
from relaxc.service.cli.tune_table import TuneProgress, duration, part, ratio
from relaxc.service.errors import InvalidOption

if TYPE_CHECKING:
    from relaxc.service.client.tune import TuneWishes
    from relaxc.service.jobs.local.tune import TuneResult
    from relaxc.service.request import CompileRequest
    from relaxc.service.tuning.options import TuneOptions

__all__ = ["parse_time", "tune"]

_TIME = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>s|m|h|)")
_SECONDS = {"s": 1, "": 1, "m": 60, "h": 3600}


def tune(
    context: typer.Context,
    model: Model,
    target: Target = "auto",
    trials: Annotated[
        int,
        typer.Option("--trials", metavar="N", min=1, help="Average trials per kernel; kernels that improve get more."),
    ] = 64,
    time: Annotated[
        str | None, typer.Option("--time", metavar="T", help="Stop after that time: 90s, 10m, 2h.", show_default=False)
    ] = None,
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="list|all|0,3-5", help="Which kernels to tune; `list` only shows them.")
    ] = "all",
    records: Annotated[
        Path | None,
        typer.Option(
            "--records",
            metavar="DIR",
            help="Folder that the records are added to; RELAXC_RECORDS, else tuning_logs, if not given.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run without repeating its trials.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Search kernels that already have a record, too.")] = False,
    exhaustive: Annotated[
        bool,
        typer.Option(
            "--exhaustive",
            help="Use all N trials of every kernel, even without improvement; a large N tries every point.",
        ),
    ] = False,
    rpc_tracker: Annotated[
        str, typer.Option("--rpc-tracker", metavar="HOST:PORT", help="Measure on devices of this tracker.")
    ] = "",
    rpc_key: Annotated[str, typer.Option("--rpc-key", metavar="K", help="The key of these devices.")] = "",
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the search.")] = 0,
    threads: Threads = None,
    shape: Shapes = None,
    precision: PrecisionName = None,
    opt_level: OptLevel = 2,
    plugin: Plugins = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Search for faster parameters of a model's kernels, and keep what wins as records that `relaxc compile` uses.

    The search spends most trials on kernels that take the most time and are far from their limit; it skips a kernel
    that reaches 90 % of it. A winner was timed in turns with the untuned kernel and computes the same numbers. Each
    record is written when it wins; Ctrl-C or a crash loses only the current trial, and --resume continues from there.

    `relaxc --server URL tune …` searches on a server, for its CPU, and adds what wins there to the records here.
    """
    from relaxc.service.config import settings
    from relaxc.service.tuning.options import TuneOptions

    into = records or settings().records or Path("tuning_logs")
    remote: Remote = context.obj
    if remote.url is not None:
        remote.refuse(tasks=tasks != "all", resume=resume, again=again, seed=seed, threads=threads, plugin=plugin)
        remote.refuse(exhaustive=exhaustive, rpc_tracker=rpc_tracker, rpc_key=rpc_key)
        compiling = options_for(shape, precision, opt_level, None, True, 0)
        wishes: TuneWishes = {"target": target, "options": compiling, "trials": trials, "time_s": parse_time(time)}
        _end(_there(remote, model, into, wishes), json)
        return
    request = _request(model, target, shape, precision, opt_level, plugin)
    listing = tasks == "list"
    options = TuneOptions(
        trials=trials,
        time_s=parse_time(time),
        tasks="all" if listing else tasks,
        seed=seed,
        threads=threads or 0,
        into=str(into),
        resume=resume,
        again=again,
        exhaustive=exhaustive,
        rpc_tracker=rpc_tracker,
        rpc_key=rpc_key,
    )
    (_list if listing else _tune)(request, options, json)


def parse_time(text: str | None) -> float | None:
    """Return seconds of `90s`, `10m`, `1.5h` or a bare number. Raise InvalidOption for anything else."""
    if text is None:
        return None
    found = _TIME.fullmatch(text.strip())
    if found is None or float(found["number"]) == 0:
        raise InvalidOption(f"--time takes 90s, 10m or 2h, got {text!r}", option="time")
    return float(found["number"]) * _SECONDS[found["unit"]]


def _request(
    model: Path,
    target: str,
    shape: list[str] | None,
    precision: str | None,
    opt_level: int,
    plugin: list[Path] | None,
) -> CompileRequest:
    from relaxc.service.compiler import prepare

    return prepare(model, target=target, options=options_for(shape, precision, opt_level, plugin, True, 0))


def _list(request: CompileRequest, options: TuneOptions, json: bool) -> None:
    from relaxc.service.jobs.local.tune import list_tasks

    with TuneProgress() as progress:
        found = list_tasks(request, options, progress)
    if json:
        print_json({"model": str(request.model.path), "target": request.target.name, **found})
        return
    numbers = ("task", "calls", "FLOPs", "MiB", "share", "points")
    shown = table("", "task", "name", *numbers[1:], "rule", "shapes", numbers=numbers)
    for index, row in enumerate(found["tasks"]):
        work = (report.count(int(row["flops"])), f"{row['bytes'] / 2**20:.1f}", part(row["share"]))
        shown.add_row(
            str(index), row["name"], str(row["weight"]), *work, str(row["points"]), row["rule"], row["shapes"]
        )
    console().print(shown)
    print("share: of the least time that all tasks together could take on this machine")
    for row in found["skipped"]:
        print(f"not a task: {row['name']} ({row['rule']}): {row['reason']}")


def _tune(request: CompileRequest, options: TuneOptions, json: bool) -> None:
    from relaxc.service.jobs.local.tune import tune_local

    with TuneProgress() as progress:
        result = tune_local(request, options, progress)
    _end(result, json)


def _there(remote: Remote, model: Path, into: Path, wishes: TuneWishes) -> TuneResult:
    """On the server; what wins there is added to the records here."""
    from relaxc.service.jobs.local.tune import TuneResult
    from relaxc.service.records import files

    with remote.client() as client, TuneProgress() as progress:
        found = client.tune(model, on_event=progress, **wishes)
    files.append(into, files.parse(found.records.encode(), "the server's records"))
    return TuneResult({**found.report, "records": str(into)}, ())


def _end(result: TuneResult, json: bool) -> None:
    if json:
        print_json({**result.report, "files": [str(file) for file in result.files]})
    else:
        _show(result)


def _show(result: TuneResult) -> None:
    found = result.report
    rows = found["tasks"]
    if rows:
        console().print(_results(rows))
    pace = f", {found['trials_per_minute']} a minute" if found["trials_per_minute"] else ""
    kept = len(found["on_record"])
    gain = f"{seconds(found['untuned_s'])} -> {seconds(found['tuned_s'])} ({ratio(found['gain'])})"
    facts(
        [
            ("trials", f"{found['trials']}{pace}; {duration(found['seconds'])}"),
            ("improved", f"{found['improved']} of {len(rows)} tasks{f'; {kept} were on record' if kept else ''}"),
            *([("all calls of them", gain)] if found["gain"] else []),
            ("records", found["records"]),
            *((file.suffix[1:], str(file)) for file in result.files),
        ]
    )


def _results(rows: list[dict[str, Any]]) -> Any:
    numbers = ("calls", "trials", "untuned", "best", "gain", "GFLOP/s", "% of roofline")
    shown = table("", "name", *numbers, "parameters", "stopped because", numbers=numbers)
    for row in sorted(rows, key=lambda row: -(row["untuned_s"] or 0.0) * row["weight"]):
        times = [seconds(row[name]) if row[name] else "" for name in ("untuned_s", "best_s")]
        rates = (ratio(row["gain"]), f"{row['gflops']:.1f}" if row["gflops"] else "", part(row["roofline"]))
        chosen = row["point"] or {}
        parameters = " ".join(f"{name}={value}" for name, value in chosen.items() if value != row["default"].get(name))
        counts = (str(row["weight"]), str(row["trials"]))
        shown.add_row(row["name"], *counts, *times, *rates, parameters or "as untuned", row["done"])
    return shown

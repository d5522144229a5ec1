"""`relaxc records coverage|verify MODEL`: what records do for one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.options import (
    Json,
    Model,
    NoRecords,
    OptLevel,
    Plugins,
    PrecisionName,
    Records,
    Shapes,
    Target,
    Verbose,
    options_for,
)
from relaxc.service.cli.output import console, print_json, seconds, table
from relaxc.service.cli.progress import StageProgress

if TYPE_CHECKING:
    from relaxc.service.request import CompileRequest

__all__ = ["coverage", "verify"]


def coverage(
    model: Model,
    target: Target = "auto",
    shape: Shapes = None,
    precision: PrecisionName = None,
    opt_level: OptLevel = 2,
    plugin: Plugins = None,
    records: Records = None,
    no_records: NoRecords = False,
    every: Annotated[bool, typer.Option("--all", help="List every kernel, not the hot ones alone.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say which kernels of a model have a tuning record that fits, and which do not; nothing is built or measured.

    Hot kernels are those that make up 95 % of the time, as a roofline of the target estimates it from their FLOPs and
    bytes. `relaxc compile --require-tuned=hot` fails unless each of them that can be tuned has a record.
    """
    from relaxc.service.jobs.local.records import cover_local
    from relaxc.service.repro import tune_command

    request = _request(model, target, shape, precision, opt_level, plugin, records, no_records)
    with StageProgress() as progress:
        kernels = cover_local(request, progress)
    hot = [kernel for kernel in kernels if kernel["hot"]]
    wanted = [kernel for kernel in hot if kernel["tunable"]]
    covered = [kernel for kernel in wanted if kernel["record"]]
    command = tune_command(request) if len(covered) < len(wanted) else None
    if json:
        counts = {"hot": len(hot), "tunable": len(wanted), "covered": len(covered)}
        print_json({**counts, "command": command, "kernels": kernels if every else hot})
        return
    console().print(_coverage_table(kernels if every else hot))
    print(f"{len(covered)} of {len(wanted)} hot kernels that can be tuned have a record")
    if command:
        print(f"the others: {command}")


def verify(
    model: Model,
    target: Target = "auto",
    shape: Shapes = None,
    precision: PrecisionName = None,
    opt_level: OptLevel = 2,
    plugin: Plugins = None,
    records: Records = None,
    no_records: NoRecords = False,
    sample: Annotated[int, typer.Option("--sample", metavar="N", min=1, help="How many records to measure.")] = 5,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the choice of records.")] = 0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure some of the records that a model uses again, and say whether they hold on this machine.

    A record has no kernel in it, so they are taken from a model. Each is run in turn with the untuned kernel:
    `slower` means that it loses to it, `drifted` that it gains over 20 % more or less than the record says.
    """
    from relaxc.service.jobs.local.records import verify_local

    request = _request(model, target, shape, precision, opt_level, plugin, records, no_records)
    with StageProgress() as progress:
        found = verify_local(request, sample=sample, seed=seed, on_event=progress)
    if json:
        print_json({name: found[name] for name in ("records", "loud", "machine", "measured")})
        return
    console().print(_drift_table(found["measured"]))
    loud = "; the machine was too loud to be believed" if found["loud"] else ""
    holding = sum(row["verdict"] == "holds" for row in found["measured"])
    print(f"{holding} of {len(found['measured'])} records hold, of {found['records']} that this model uses{loud}")
    if found["machine"] is not None:
        print(f"untuned kernels take {found['machine']:.2f} times as long here as where the records were made")


def _request(
    model: Path,
    target: str,
    shape: list[str] | None,
    precision: str | None,
    opt_level: int,
    plugin: list[Path] | None,
    records: list[Path] | None,
    no_records: bool,
) -> CompileRequest:
    from relaxc.service.compiler import prepare

    options = options_for(shape, precision, opt_level, plugin, False, 0, records, no_records)
    return prepare(model, target=target, options=options)


def _coverage_table(kernels: list[dict[str, Any]]) -> Any:
    shown = table("", "kernel", "workload", "share", "scheduled by", "shapes", "record", numbers=("share",))
    for kernel in kernels:
        more = f" and {len(kernel['functions']) - 1} more" if len(kernel["functions"]) > 1 else ""
        name = f"{kernel['functions'][0]}{more}"
        shown.add_row(
            name, kernel["workload"], f"{kernel['share']:.1%}", kernel["rule"], kernel["shapes"], _record(kernel)
        )
    return shown


def _record(kernel: dict[str, Any]) -> str:
    if kernel["record"]:
        return f"{kernel['record']['digest'][:8]} of {kernel['record']['date']}"
    if kernel["passed_over"]:
        return f"none: {kernel['passed_over'][0][1]}"
    return "none" if kernel["tunable"] else "nothing to tune"


def _drift_table(rows: list[dict[str, Any]]) -> Any:
    shown = table(
        "",
        "kernel",
        "rule",
        "shapes",
        "recorded",
        "now",
        "untuned now",
        "verdict",
        numbers=("recorded", "now", "untuned now"),
    )
    for row in rows:
        now, untuned = ("-" if row[name] is None else seconds(row[name]) for name in ("seconds", "untuned_s"))
        verdict = f"{row['verdict']}: {row['detail']}" if row["detail"] else row["verdict"]
        shown.add_row(row["function"], row["rule"], row["shapes"], seconds(row["recorded_s"]), now, untuned, verdict)
    return shown

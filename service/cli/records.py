"""`relaxc records …`: what tuning found, looked at, shared and kept in order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli import records_model
from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, seconds, table
from relaxc.service.errors import InvalidOption, InvalidRecords

if TYPE_CHECKING:
    from relaxc.service.records.record import Record, RecordSet

__all__ = ["app", "export", "import_", "ls", "merge", "prune", "show"]

app = typer.Typer(
    help="Look at tuning records, share them, and check what they cover. `relaxc tune` makes them; docs/tuning.md says "
    "what they are.",
    no_args_is_help=True,
)

Places = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[DIR]...", help="Folders or files of records; those that come with relaxc if none is given."
    ),
]
OnlyTarget = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="NAME", help="Only records for this target, as `records ls` names it; or `auto`."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]


@app.command()
def ls(places: Places = None, target: OnlyTarget = None, json: Json = False, verbose: Verbose = False) -> None:
    """List records, one per line: workload, template, time reached and speedup."""
    found = _read(places, target)
    if json:
        print_json({"digest": found.digest, "records": [_described(record) for record in found]})
        return
    columns = ("workload", "rule", "dtype", "shapes", "time", "untuned", "gain", "of roofline", "date")
    for one in found.targets:
        shown = table(one.name, *columns, numbers=columns[4:8])
        for record in found.for_target(one):
            shown.add_row(*_row(record))
        console().print(shown)
    print(f"{len(found)} records for {len(found.targets)} targets, digest {found.digest[:16]}")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="The first digits of a workload, or of a record.", show_default=False)
    ],
    places: Places = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show all that is known of a record: its parameters, its key, and how it was found.

    The manifest of an artifact names the record behind each kernel (`relaxc inspect OUT.so --json`).
    """
    found = [
        record for record in _read(places, None) if record.workload.startswith(name) or record.digest.startswith(name)
    ]
    if not found:
        raise InvalidOption(f"no record's workload or digest begins with {name!r}", option="id")
    if json:
        print_json({"records": [_described(record) for record in found]})
        return
    for record in found:
        data = _described(record)
        data["parameters"] = " ".join(f"{name}={value}" for name, value in record.parameters.items())
        facts(
            [
                (name, "-" if value is None else str(value))
                for name, value in {**data, "target": record.target.name}.items()
            ]
        )
        print()


@app.command()
def merge(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="FROM...", help="Folders or files of records; they stay as they are.", show_default=False
        ),
    ],
    into: Annotated[
        Path,
        typer.Option("--into", metavar="DIR", help="The folder that gets them; made if needed.", show_default=False),
    ],
    dry_run: DryRun = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Add the records of some folders or files to another folder.

    Where two records have the same key (workload, target, rule, version, dtype, threads), the faster one stays. So
    merging again changes nothing, and the order does not matter. Other processes may write to the folder at the same
    time.
    """
    from relaxc.service.records.files import append, read
    from relaxc.service.records.record import RecordSet

    before = read(into) if into.exists() else RecordSet()
    given = _read(places, None)
    after = before | given
    changed = [record for record in after if record not in before]
    if not dry_run:
        append(into, given)
    if json:
        print_json({"into": str(into), "changed": [_described(r) for r in changed], "records": len(after)})
    else:
        has = "would have" if dry_run else "has"
        print(f"{len(changed)} of {len(given)} records are new or faster; {into} {has} {len(after)}")


@app.command()
def prune(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to prune.", show_default=False)],
    dry_run: DryRun = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove records that no compile uses any more.

    Those are records of a rule that is gone or has a later version, and records that a faster one of another rule
    hides. Records of a later version than this relaxc has stay.
    """
    from relaxc.service.records.files import remove
    from relaxc.service.records.stale import current_versions, stale

    found = stale(_read([folder], None), current_versions())
    if not dry_run:
        remove(folder, [record for record, _ in found])
    if json:
        print_json({"removed": [{**_described(record), "reason": reason} for record, reason in found]})
        return
    shown = table("", "record", "target", "rule", "shapes", "reason")
    for record, reason in found:
        shown.add_row(record.digest, record.target.name, record.rule, record.shapes, reason)
    if found:
        console().print(shown)
    print(f"{len(found)} records {'would be' if dry_run else 'were'} removed")


@app.command()
def export(
    places: Places = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write; stdout if not given.")
    ] = None,
    target: OnlyTarget = None,
    verbose: Verbose = False,
) -> None:
    """Write records as one file of JSON lines, for `relaxc records import`, `--records FILE` or POST /v1/records."""
    found = _read(places, target)
    if output is None:
        sys.stdout.write(found.to_lines())
        return
    try:
        output.write_text(found.to_lines(), encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"cannot write {output}: {error.strerror}", option="output") from error
    print(f"{len(found)} records, digest {found.digest[:16]}")


@app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A file of `relaxc records export`; `-` is stdin.", show_default=False),
    ],
    into: Annotated[
        Path,
        typer.Option("--into", metavar="DIR", help="The folder that gets them; made if needed.", show_default=False),
    ],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Add the records of one file to a folder, each in the file of its target and rule; as `merge` does."""
    from relaxc.service.records.files import append, parse, read
    from relaxc.service.records.record import RecordSet

    given = parse(sys.stdin.buffer.read(), "stdin") if str(file) == "-" else read(file)
    before = read(into) if into.exists() else RecordSet()
    append(into, given)
    changed = sum(record not in before for record in before | given)
    if json:
        print_json({"into": str(into), "given": len(given), "changed": changed})
    else:
        print(f"{changed} of {len(given)} records are new or faster")


def _read(places: list[Path] | None, target: str | None) -> RecordSet:
    from relaxc.service.records.files import read
    from relaxc.service.records.record import RecordSet
    from relaxc.service.records.sources import SHIPPED

    if not places and not SHIPPED.exists():
        raise InvalidRecords(f"relaxc has no records of its own at {SHIPPED}", remedy="Name a folder of records.")
    found = RecordSet(record for place in places or [SHIPPED] for record in read(place))
    return found if target is None else RecordSet(r for r in found if r.target.name == _target_name(target))


def _target_name(text: str) -> str:
    """The name of the records' folder of a target: that name itself, or `auto`, a tag, target JSON."""
    from relaxc.service.errors import InvalidTarget
    from relaxc.service.lowering.target import resolve
    from relaxc.service.records.record import RecordTarget

    try:
        return RecordTarget.of(resolve(text)).name
    except InvalidTarget:
        return text


def _described(record: Record) -> dict[str, Any]:
    return {"digest": record.digest, **record.to_dict(), "gain": record.gain}


def _row(record: Record) -> tuple[str, ...]:
    untuned, gain = ("-", "-") if record.untuned_s is None else (seconds(record.untuned_s), f"{record.gain:.2f}x")
    reached = "-" if record.roofline is None else f"{record.roofline:.0%}"
    rule = f"{record.rule} v{record.version}"
    return (
        *(record.workload, rule, record.dtype, record.shapes),
        *(seconds(record.seconds), untuned, gain, reached, record.date),
    )


app.command()(records_model.coverage)
app.command()(records_model.verify)

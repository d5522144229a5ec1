"""`relaxc owners create|ls|show|set`: whose everything is on this machine's server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, shown_value, table
from relaxc.service.cli.quota import print_quotas
from relaxc.service.errors import InvalidOption

__all__ = ["app", "change", "create", "ls", "show"]

app = typer.Typer(help="Make, list and change the owners of the server's database.", no_args_is_help=True)


def Limit(what: str) -> Any:  # a kind of typer.Option
    """Return the option of a quota."""
    return typer.Option(metavar="N", help=f"{what}: a number, `unlimited`, or `default` for the server's setting.")


Who = Annotated[str, typer.Argument(metavar="OWNER", help="The owner's name or id, as `relaxc owners ls` shows it.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Who it is: a person, a team, a program.")],
    weight: Annotated[float, typer.Option(help="Its share of the workers where several owners want them.")] = 1.0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make an owner; `relaxc keys create NAME --owner OWNER` gives it keys.

    RELAXC_DATABASE_URL and RELAXC_CACHE_DIR have to be as the server has them.
    """
    from relaxc.service.jobs.objects.owners import open_owners

    with open_owners() as owners:
        made = owners.create(name, weight=weight)
    described = {**made.to_dict(), "webhook_secret": made.webhook_secret}
    _print(described, json)


@app.command()
def ls(json: Json = False, verbose: Verbose = False) -> None:
    """List the owners, the newest first."""
    from relaxc.service.jobs.objects.owners import open_owners

    with open_owners() as owners:
        rows = [row.to_dict() for row in owners.list()]
    if json:
        print_json({"owners": rows})
        return
    columns = ("id", "name", "weight", "created", "disabled")
    shown = table("", *columns, numbers=("weight",))
    for row in rows:
        shown.add_row(*(shown_value(row[column]) for column in columns))
    console().print(shown)


@app.command()
def show(owner: Who, json: Json = False, verbose: Verbose = False) -> None:
    """Show an owner, what it may have, and what it has."""
    from relaxc.service.jobs.objects.owners import open_owners

    with open_owners() as owners:
        described = owners.describe(owner)
    if json:
        print_json(described)
        return
    quotas = described.pop("quotas")
    _print(described, json)
    print_quotas(quotas)


@app.command(name="set")
def change(
    owner: Who,
    name: Annotated[str | None, typer.Option(help="What to call it from now on.")] = None,
    weight: Annotated[float | None, typer.Option(help="Its share of the workers, for jobs that come now.")] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Whether its keys are refused, and its queued jobs wait."),
    ] = None,
    queued_jobs: Annotated[str | None, Limit("Jobs that wait")] = None,
    running_jobs: Annotated[str | None, Limit("Jobs that run at the same time, while more wait")] = None,
    bytes: Annotated[str | None, Limit("Bytes of models, artifacts, record sets and uploads")] = None,
    tuning_hours: Annotated[str | None, Limit("Hours of tuning in 30 days")] = None,
    new_webhook_secret: Annotated[
        bool, typer.Option("--new-webhook-secret", help="Sign its webhooks with a new secret, which is printed.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Change an owner; what is not given stays as it is."""
    from relaxc.service.jobs.objects.owners import open_owners

    limits = {
        "queued_jobs": queued_jobs,
        "running_jobs": running_jobs,
        "bytes": bytes,
        "tuning_hours": tuning_hours,
    }
    quotas = {name: limit_of(name, text) for name, text in limits.items() if text is not None}
    wishes = (name, weight, disabled, quotas or None, new_webhook_secret or None)
    if all(value is None for value in wishes):
        raise InvalidOption("nothing is to be changed", remedy="`relaxc owners set --help` lists what can be.")
    with open_owners() as owners:
        row = owners.change(
            owner, name=name, weight=weight, disabled=disabled, quotas=quotas, new_webhook_secret=new_webhook_secret
        )
    secret = {"webhook_secret": row.webhook_secret} if new_webhook_secret else {}
    _print({**row.to_dict(), **secret}, json)


def limit_of(name: str, text: str) -> float | str:
    """Return what an option says of a quota: a number, `unlimited` or `default`. Raise InvalidOption."""
    if text in ("unlimited", "default"):
        return text
    try:
        return float(text)
    except ValueError as error:
        option = name.replace("_", "-")
        raise InvalidOption(
            f"--{option} is a number, `unlimited` or `default`, not {text[:80]!r}", option=option
        ) from error


def _print(described: dict[str, Any], json: bool) -> None:
    if json:
        print_json(described)
        return
    facts((label, shown_value(value)) for label, value in described.items())

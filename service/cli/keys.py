"""`relaxc keys create|ls|revoke`: who may ask this machine's server, and for what."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.options import Json, Verbose
from service.cli.output import console, facts, print_json, table

__all__ = ["app", "create", "ls", "revoke"]

app = typer.Typer(help="Make, list and revoke the API keys of the server's database.", no_args_is_help=True)

_DAY_S = 86400.0


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What you call it: who will use it, and where.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="What it may do: read, compile, tune, admin (all of them). Give it once for each."),
    ] = None,
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires; never if not given.")] = None,
    weight: Annotated[float, typer.Option(help="Its share of the workers where several keys want them.")] = 1.0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make a key, and print its secret, which is not kept and never shown again.

    Without --scope it may read and compile. RELAXC_DATABASE_URL and RELAXC_CACHE_DIR have to be as the server has them.
    """
    from service.jobs.objects.keys import open_keys

    expires_s = None if expires_days is None else expires_days * _DAY_S
    with open_keys() as keys:
        made = keys.create(name, scope or ["read", "compile"], expires_s=expires_s, weight=weight)
    described = {**made.row.to_dict(), "secret": made.secret, "webhook_secret": made.row.webhook_secret}
    if json:
        print_json(described)
        return
    shown = ("id", "name", "scopes", "expires", "secret", "webhook_secret")
    facts((label, _shown(described[label])) for label in shown)
    print("Keep the secrets now: they are not shown again.")


@app.command()
def ls(json: Json = False, verbose: Verbose = False) -> None:
    """List the keys, also those that are revoked or expired, the newest first."""
    from service.jobs.objects.keys import open_keys

    with open_keys() as keys:
        rows = [row.to_dict() for row in keys.list()]
    if json:
        print_json({"keys": rows})
        return
    columns = ("id", "name", "scopes", "weight", "created", "expires", "revoked")
    shown = table("", *columns, numbers=("weight",))
    for row in rows:
        shown.add_row(*(_shown(row[column]) for column in columns))
    console().print(shown)


@app.command()
def revoke(
    id: Annotated[str, typer.Argument(help="The key's id, as `relaxc keys ls` shows it: k_…")],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Refuse a key from now on; a server that has just seen it does within a second."""
    from service.jobs.objects.keys import open_keys

    with open_keys() as keys:
        row = keys.revoke(id).to_dict()
    if json:
        print_json(row)
    else:
        print(f"{row['id']} ({row['name']}) is revoked since {row['revoked']}")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)

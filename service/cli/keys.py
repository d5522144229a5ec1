"""`relaxc keys create|ls|rotate|revoke`: who may ask this machine's server, in whose name, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, shown_value, table
from relaxc.service.errors import InvalidOption

if TYPE_CHECKING:
    from relaxc.service.jobs.objects.key_secrets import NewKey

__all__ = ["app", "create", "ls", "revoke", "rotate"]

app = typer.Typer(help="Make, list, rotate and revoke the API keys of the server's database.", no_args_is_help=True)

_DAY_S = 86400.0
_HOUR_S = 3600.0

Id = Annotated[str, typer.Argument(help="The key's id, as `relaxc keys ls` shows it: k_…")]
OptionalId = Annotated[str | None, typer.Argument(help="The key's id, as `relaxc keys ls` shows it: k_…")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What you call it: who will use it, and where.")],
    owner: Annotated[
        str | None,
        typer.Option(help="In whose name it asks: an owner's name or id. Without, a new owner of the key's name."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="What it may do: read, compile, tune, admin (all of them). Give it once for each."),
    ] = None,
    expires_days: Annotated[float | None, typer.Option(help="Days until it expires; never if not given.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="The new owner's share of the workers where several want them; 1 if not given.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make a key, and print its secret, which is not kept and never shown again.

    All keys of an owner see the same models, jobs and artifacts. Without --scope it may read and compile.
    RELAXC_DATABASE_URL and RELAXC_CACHE_DIR have to be as the server has them.
    """
    from relaxc.service.jobs.objects.keys import open_keys

    expires_s = None if expires_days is None else expires_days * _DAY_S
    with open_keys() as keys:
        made = keys.create(name, scope or ["read", "compile"], owner=owner, expires_s=expires_s, weight=weight)
    _print_new(made, json)


@app.command()
def ls(
    owner: Annotated[str | None, typer.Option(help="Only the keys of this owner: a name or an id.")] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the keys, also those that are revoked or expired, the newest first."""
    from relaxc.service.jobs.objects.keys import open_keys

    with open_keys() as keys:
        rows = [row.to_dict() for row in keys.list(owner)]
    if json:
        print_json({"keys": rows})
        return
    columns = ("id", "name", "owner", "owner_name", "scopes", "created", "expires", "revoked")
    shown = table("", *columns)
    for row in rows:
        shown.add_row(*(shown_value(row[column]) for column in columns))
    console().print(shown)


@app.command()
def rotate(
    id: Id,
    grace_hours: Annotated[
        float, typer.Option(help="Hours for which the old key works on beside the new one; 0 ends it now.")
    ] = 0.0,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Make a new key in place of one, for the same owner, with the same name, scopes and length of life.

    Whoever has the new key sees all that there was. Its secret is printed now, and never again.
    """
    from relaxc.service.jobs.objects.keys import open_keys

    with open_keys() as keys:
        made = keys.rotate(id, grace_s=grace_hours * _HOUR_S)
    _print_new(made, json)


@app.command()
def revoke(
    id: OptionalId = None,
    owner: Annotated[str | None, typer.Option(help="All keys of this owner, a name or an id, in place of one.")] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Refuse a key, or all keys of an owner, from now on; a server that has just seen one does within a second."""
    from relaxc.service.jobs.objects.keys import open_keys

    if (id is None) == (owner is None):
        raise InvalidOption("either a key's id or --owner is needed", option="owner")
    with open_keys() as keys:
        rows = [keys.revoke(id)] if id is not None else keys.revoke_all(str(owner))
    described = [row.to_dict() for row in rows]
    if json:
        print_json(described[0] if id is not None else {"keys": described})
        return
    for row in described:
        print(f"{row['id']} ({row['name']}) is revoked since {row['revoked']}")


def _print_new(made: NewKey, json: bool) -> None:
    described = made.to_dict()
    if json:
        print_json(described)
        return
    shown = ("id", "name", "owner", "owner_name", "scopes", "expires", "secret", "webhook_secret")
    facts((label, shown_value(described[label])) for label in shown if described[label] or label == "expires")
    print("Keep what is secret now: it is not shown again.")

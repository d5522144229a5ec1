"""`relaxc --server URL quota`: what the key's owner may have there, and what it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, size, table
from relaxc.service.cli.remote import Remote
from relaxc.service.errors import InvalidOption

__all__ = ["print_quotas", "quota"]

_WHAT = {
    "queued_jobs": "jobs that wait",
    "running_jobs": "jobs that run",
    "bytes": "kept and on the way",
    "tuning_hours": "hours of tuning in 30 days",
}


def quota(context: typer.Context, json: Json = False, verbose: Verbose = False) -> None:
    """Show your quotas on a server, and how much of them you use: `relaxc --server URL quota`.

    Jobs beyond the number that may run at once wait. A queued or running tuning counts with the time it asked for.
    """
    remote: Remote = context.obj
    if remote.url is None:
        raise InvalidOption(
            "quotas are a server's",
            remedy="Name it: `relaxc --server URL quota`; on its own machine `relaxc owners show OWNER`.",
            option="server",
        )
    with remote.client() as client:
        found = client.quota()
    if json:
        print_json(found)
        return
    facts([("owner", f"{found['name']} ({found['id']})")])
    print_quotas(found["quotas"])


def print_quotas(quotas: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line for each quota."""
    shown = table("", "quota", "used", "limit", numbers=("used", "limit"))
    for name, row in quotas.items():
        limit = "unlimited" if row["limit"] is None else _amount(name, row["limit"])
        shown.add_row(_WHAT.get(name, name), _amount(name, row["used"]), limit)
    console().print(shown)


def _amount(name: str, value: float) -> str:
    return size(value) if name == "bytes" else f"{value:g}"

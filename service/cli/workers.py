"""`relaxc workers`: the servers and workers of a database, and what their machines are."""

from __future__ import annotations

from typing import Any

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, print_json, shown_value, size, table
from relaxc.service.cli.remote import Remote

__all__ = ["workers"]


def workers(context: typer.Context, json: Json = False, verbose: Verbose = False) -> None:
    """List servers and workers, with their hosts, their machines and the number of jobs each runs.

    A `silent` one has missed heartbeats. After RELAXC_SERVER_LEASE_S it counts as dead: its jobs run elsewhere, and it
    leaves the list. RELAXC_DATABASE_URL and RELAXC_CACHE_DIR have to be as the servers have them; `relaxc --server URL
    workers` asks a server, with the key of an admin.
    """
    remote: Remote = context.obj
    rows = _here() if remote.url is None else _there(remote)
    if json:
        print_json({"workers": rows})
        return
    shown = table("", "host", "pid", "role", "state", "machine", "cores", "memory", "jobs", "tunings", "running")
    for row in rows:
        machine, slots = row["machine"] or {}, row["slots"]
        words = (*(row[name] for name in ("host", "pid", "role", "state")), machine.get("kind"), machine.get("cores"))
        memory = size(machine["memory_bytes"]) if machine else None
        shown.add_row(*map(shown_value, (*words, memory, slots["jobs"], slots["tunings"], row["running"])))
    console().print(shown)


def _here() -> list[dict[str, Any]]:
    from relaxc.service.jobs.workers.fleet import open_fleet

    with open_fleet() as fleet:
        return [each.to_dict() for each in fleet.every()]


def _there(remote: Remote) -> list[dict[str, Any]]:
    with remote.client() as client:
        return list(client.workers()["workers"])

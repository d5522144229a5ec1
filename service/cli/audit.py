"""`relaxc audit`: who did what on a server."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, printable, shown_value, table
from relaxc.service.cli.remote import Remote
from relaxc.service.errors import InvalidOption

if TYPE_CHECKING:
    from relaxc.service.jobs.database.rows import AuditFilter

__all__ = ["audit"]

_COLUMNS = ("time", "owner", "key", "action", "object", "outcome", "address")
_AT_ONCE = 500

Page = Callable[[int, str | None], dict[str, Any]]


def audit(
    context: typer.Context,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Only from then on, as 2026-11-21T08:00.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only before then.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="ID", help="Only what this owner did.")] = None,
    key: Annotated[str | None, typer.Option(metavar="ID", help="Only what was done with this key.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this: 'DELETE /v1/models/{digest}'.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many rows, the newest; 0 is all.")] = 50,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the audit log, the newest row first; with --json an object a line.

    RELAXC_DATABASE_URL and RELAXC_CACHE_DIR have to be as the server has them. `relaxc --server URL audit` asks a
    server, with the key of an admin. Times without a zone are UTC.
    """
    moments = {"since": _moment(since, "since"), "until": _moment(until, "until")}
    words = {"owner": owner, "key": key, "action": action}
    remote: Remote = context.obj
    rows = _here(moments, words, limit) if remote.url is None else _there(remote, moments, words, limit)
    if json:
        for row in rows:
            print(json_text.dumps(row))
        return
    shown = table("", *_COLUMNS)
    for row in rows:
        shown.add_row(*(printable(shown_value(row[column])) for column in _COLUMNS))
    console().print(shown)


def _here(moments: dict[str, datetime | None], words: dict[str, str | None], limit: int) -> Iterator[dict[str, Any]]:
    from relaxc.service.jobs.database.rows import AuditFilter
    from relaxc.service.jobs.objects.audit import open_audit

    begin, end = (None if moment is None else moment.timestamp() for moment in moments.values())
    wanted: AuditFilter = AuditFilter(since=begin, until=end, **words)
    with open_audit() as log:

        def page(limit: int, cursor: str | None) -> dict[str, Any]:
            found = log.page(wanted, limit=limit, cursor=cursor)
            return {"rows": [row.to_dict() for row in found.rows], "next": found.next}

        yield from _rows(page, limit)


def _there(
    remote: Remote, moments: dict[str, datetime | None], words: dict[str, str | None], limit: int
) -> Iterator[dict[str, Any]]:
    texts = {name: None if moment is None else moment.isoformat() for name, moment in moments.items()}
    with remote.client() as client:
        yield from _rows(lambda n, cursor: client.audit(limit=str(n), cursor=cursor, **texts, **words), limit)


def _rows(page: Page, limit: int) -> Iterator[dict[str, Any]]:
    """Page by page, so that a log of any length takes no more memory than one."""
    left, cursor = limit or None, None
    while left is None or left > 0:
        found = page(_AT_ONCE if left is None else min(left, _AT_ONCE), cursor)
        yield from found["rows"]
        cursor = found["next"]
        if cursor is None:
            return
        left = None if left is None else left - len(found["rows"])


def _moment(text: str | None, option: str) -> datetime | None:
    """A time as RFC 3339 has it, or less of it; UTC where it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidOption(f"--{option} takes a time such as 2026-11-21T08:00, not {text!r}", option=option) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

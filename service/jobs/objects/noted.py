"""Who changed keys and owners without a server, for the audit log: whoever has the machine, by its command line."""

from __future__ import annotations

import os
import platform
import pwd
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relaxc.service.jobs.database import audit, clock
from relaxc.service.jobs.database.rows import AuditRow

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["Note", "by_command", "by_request"]

Note = Callable[["Connection", str, str, dict[str, Any]], None]
"""Called in the transaction of a change with its verb (`keys create`), what it changed, and how."""

DONE = "done"


def by_command(connection: Connection, verb: str, object: str, how: dict[str, Any]) -> None:
    """Add a row of no key and no owner; it is there if and only if the change is."""
    detail = {"user": _user(), "host": platform.node(), **how}
    row = AuditRow(clock.now(), "", f"relaxc {verb}", object, DONE, "", detail)
    audit.append(connection, [row])


def by_request(connection: Connection, verb: str, object: str, how: dict[str, Any]) -> None:
    """Add nothing: a server notes each of its requests."""


def _user() -> str:
    """The name of who runs this process, or the number, where a container has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())

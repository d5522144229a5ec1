"""Owners: whose models, artifacts, jobs and record sets there are, and whose share of the workers."""

from __future__ import annotations

import math
import secrets
import string
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from relaxc.service.config import settings
from relaxc.service.errors import AdminNeeded, InvalidOption, OwnerNotFound
from relaxc.service.jobs.database import clock, owners
from relaxc.service.jobs.database.engine import Database, url_of_settings
from relaxc.service.jobs.database.owners import OwnerRow
from relaxc.service.jobs.database.quotas import QUOTAS, hold
from relaxc.service.jobs.objects import admins
from relaxc.service.jobs.objects.allowance import Allowance
from relaxc.service.jobs.objects.noted import Note, by_command, by_request

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

__all__ = ["Owners", "check_name", "find_owner", "new_owner", "open_owners", "random_letters"]

_LETTERS = string.ascii_letters + string.digits
_ID_LETTERS = 12
_SECRET_LETTERS = 43
_MAX_NAME = 200


class Owners:
    """The owners of one database. Methods may be called from any thread; `who` is an id, or a name that one has."""

    def __init__(self, database: Database, note: Note = by_request) -> None:
        """`note` is told of each change, in its transaction."""
        self._database = database
        self._note = note

    def create(self, name: str, *, weight: float = 1.0) -> OwnerRow:
        """Return a new owner, who has nothing and no key. Raise InvalidOption."""
        row = new_owner(name, weight)
        with self._database.begin() as connection:
            owners.insert(connection, row)
            self._note(connection, "owners create", row.id, {"name": row.name})
        return row

    def list(self) -> list[OwnerRow]:
        """Return every owner, the newest first."""
        with self._database.read() as connection:
            return owners.every(connection)

    def find(self, who: str) -> OwnerRow:
        """Return the owner. Raise OwnerNotFound, InvalidOption for a name that several have."""
        with self._database.read() as connection:
            return find_owner(connection, who)

    def describe(self, who: str) -> dict[str, Any]:
        """Return the owner as JSON, with its quotas and what it uses of them. Raise what `find` raises."""
        return Allowance(self._database).describe(self.find(who).id)

    def change(
        self,
        who: str,
        *,
        name: str | None = None,
        weight: float | None = None,
        disabled: bool | None = None,
        quotas: Mapping[str, float | str] = MappingProxyType({}),
        new_webhook_secret: bool = False,
        asker: str | None = None,
    ) -> OwnerRow:
        """Give the owner these values, where they are not None, and return it; `asker` is the owner that asks for it.

        `quotas` has numbers, `unlimited`, or `default`, by names of `Quotas`; what is not in it stays.

        While it is disabled its keys are refused (by other servers within a second) and its queued jobs wait. Jobs that
        are queued keep the weight that they came with. Raise what `find` raises, InvalidOption, and AdminNeeded where
        the asker disables itself, or the last admin.
        """
        columns: dict[str, Any] = {}
        if name is not None:
            columns["name"] = check_name(name)
        if weight is not None:
            columns["weight"] = _checked_weight(weight)
        if disabled is not None:
            columns["disabled"] = clock.now() if disabled else None
        if new_webhook_secret:
            columns["webhook_secret"] = _webhook_secret()
        with self._database.begin() as connection, admins.changing(self._database, connection, asker):
            id = find_owner(connection, who).id
            if disabled and id == asker:
                raise AdminNeeded("nobody disables himself", who="oneself")
            hold(connection, id)
            own = find_owner(connection, id).quotas
            owners.update(connection, id, **columns, quotas=_changed(own, quotas))
            self._note(connection, "owners set", id, {"changed": sorted({*columns, *quotas})})
            return find_owner(connection, id)


def _changed(own: Mapping[str, float | None], wishes: Mapping[str, float | str]) -> dict[str, float | None]:
    """The owner's own quotas, null for no limit, without those that are the settings' again."""
    changed = dict(own)
    for name, wish in wishes.items():
        is_number = isinstance(wish, int | float) and 0 <= wish < math.inf
        if name not in QUOTAS or not (is_number or wish in ("default", "unlimited")):
            raise InvalidOption(f"quota {name} is a number, `unlimited` or `default`, not {wish!r}", option=name)
        changed[name] = None if isinstance(wish, str) else wish
        if wish == "default":
            del changed[name]
    return changed


def find_owner(connection: Connection, who: str) -> OwnerRow:
    """Return the owner with this id, or the only one of this name. Raise OwnerNotFound, InvalidOption."""
    found = owners.find(connection, who) if "\0" not in who else None
    if found is not None:
        return found
    same = owners.named(connection, who) if "\0" not in who else []
    if len(same) > 1:
        ids = [row.id for row in same]
        raise InvalidOption(f"{len(same)} owners are named {who!r}: {', '.join(ids[:10])}", option="owner", owners=ids)
    if not same:
        raise OwnerNotFound(f"there is no owner {who[:80]!r}")
    return same[0]


def new_owner(name: str, weight: float) -> OwnerRow:
    """Return an owner with an id of its own, not in the database yet. Raise InvalidOption."""
    return OwnerRow(
        id="o_" + random_letters(_ID_LETTERS),
        name=check_name(name),
        weight=_checked_weight(weight),
        quotas={},
        webhook_secret=_webhook_secret(),
        created=clock.now(),
    )


def check_name(name: str) -> str:
    """Return the name of a key or an owner. Raise InvalidOption."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise InvalidOption(f"a name has 1 to {_MAX_NAME} printable characters", option="name")
    return name


def random_letters(letters: int) -> str:
    """Return so many letters and digits that nobody can guess."""
    return "".join(secrets.choice(_LETTERS) for _ in range(letters))


@contextmanager
def open_owners() -> Iterator[Owners]:
    """Return the owners of the database that the settings name, for a command. Raise InvalidOption, ServiceError."""
    with closing(Database(url_of_settings(settings().cache_dir))) as database:
        yield Owners(database, by_command)


def _checked_weight(weight: float) -> float:
    if not 0 < weight <= 1000:
        raise InvalidOption("a weight is over 0 and at most 1000", option="weight")
    return weight


def _webhook_secret() -> str:
    return "whsec_" + random_letters(_SECRET_LETTERS)

"""Somebody is left who can ask as an admin, over both databases, also where admins do it to one another at once."""

from __future__ import annotations

from contextlib import closing

import pytest

from relaxc.service.errors import AdminNeeded
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.key_secrets import NewKey
from relaxc.service.jobs.objects.keys import Keys
from relaxc.service.jobs.objects.owners import Owners
from tests.jobs.at_once import at_once


def admin(database: Database, name: str, *, expires_s: float | None = None) -> NewKey:
    """An owner with one key, which is an admin's."""
    return Keys(database).create(name, ["admin"], expires_s=expires_s)


def refused(database: Database, asker: NewKey, victim: NewKey) -> set[str]:
    """Of the three ways to take admin from an owner, whom the refused ones would have hit."""
    owners, keys = Owners(database), Keys(database)
    asks, owner = asker.row.owner_id, victim.row.owner_id
    ways = (
        lambda: owners.change(owner, disabled=True, asker=asks),
        lambda: keys.revoke(victim.row.id, asker=asks),
        lambda: keys.revoke_all(owner, asker=asks),
    )
    hit = set()
    for way in ways:
        with pytest.raises(AdminNeeded) as error:
            way()
        hit.add(error.value.fields["who"])
    assert owners.find(owner).disabled is None
    assert keys.find(victim.secret) is not None
    return hit


def test_nobody_takes_admin_from_himself(database: Database) -> None:
    ann, _ = admin(database, "ann"), admin(database, "bob")
    assert refused(database, ann, ann) == {"oneself"}
    other = Keys(database).create("phone", ["admin"], owner="ann")
    assert Keys(database).revoke(ann.row.id, asker=ann.row.owner_id).revoked  # he has another
    with pytest.raises(AdminNeeded):
        Keys(database).revoke(other.row.id, asker=ann.row.owner_id)


def test_who_asks_without_a_key_takes_admin_from_others_but_not_from_the_last(database: Database) -> None:
    local = Owners(database)
    ann, bob = admin(database, "ann"), admin(database, "bob")
    Keys(database).create("eve", ["read", "compile"])
    local.change("bob", disabled=True, asker="k_local")
    with pytest.raises(AdminNeeded, match="last"):
        local.change("ann", disabled=True, asker="k_local")
    with pytest.raises(AdminNeeded, match="last"):
        Keys(database).revoke(ann.row.id, asker="k_local")
    Keys(database).revoke(bob.row.id, asker="k_local")
    Keys(database).revoke_all("eve", asker="k_local")


def test_everybody_without_a_key_does_not_disable_itself(database: Database) -> None:
    with pytest.raises(AdminNeeded):
        Owners(database).change("k_local", disabled=True, asker="k_local")


def test_a_key_that_has_expired_is_no_admins(database: Database) -> None:
    ann = admin(database, "ann")
    admin(database, "bob", expires_s=1e-6)
    assert refused(database, ann, ann) == {"oneself"}


def test_who_runs_the_server_may(database: Database) -> None:
    ann = admin(database, "ann")
    assert Owners(database).change("ann", disabled=True).disabled
    assert Keys(database).revoke(ann.row.id).revoked


def test_of_admins_who_disable_one_another_at_once_one_is_left(database: Database, database_url: str) -> None:
    admins = [admin(database, f"admin {number}") for number in range(6)]
    with closing(Database(database_url)) as other:

        def disable_the_next(number: int) -> None:
            asker, victim = admins[number], admins[(number + 1) % len(admins)]
            Owners(other if number % 2 else database).change(
                victim.row.owner_id, disabled=True, asker=asker.row.owner_id
            )

        errors = at_once(len(admins), disable_the_next)
    assert [type(error) for error in errors] == [AdminNeeded]
    assert sum(row.disabled is None for row in Owners(database).list()) == 2  # with everybody who has no key

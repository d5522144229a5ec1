"""API keys: what is kept of a secret, who is served with it, until when."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.errors import InvalidOption, KeyNotFound, OwnerNotFound
from relaxc.service.jobs.database import audit
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.database.rows import SCOPES, AuditRow
from relaxc.service.jobs.objects import keys as keys_module
from relaxc.service.jobs.objects.keys import Keys
from relaxc.service.jobs.objects.owners import Owners


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(Database(f"sqlite:///{tmp_path / 'keys.sqlite3'}")) as database:
        yield database


@pytest.fixture
def keys(database: Database) -> Keys:
    return Keys(database)


def test_a_secret_is_shown_once_and_only_its_hash_is_kept(keys: Keys, tmp_path: Path) -> None:
    made = keys.create("ci", ["compile", "read"])
    assert re.fullmatch(r"rk_[0-9A-Za-z]{43}", made.secret)
    assert re.fullmatch(r"k_[0-9A-Za-z]{12}", made.row.id)
    found = keys.find(made.secret)
    assert found is not None
    assert found == made.row == keys.list()[0]
    assert found.owner.scopes == {"compile", "read"}
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert made.secret.encode() not in kept
    assert made.secret.removeprefix("rk_").encode() not in kept
    assert made.secret not in str(made.row.to_dict())
    assert str(made.webhook_secret) not in str(made.row.to_dict())


@pytest.mark.parametrize("secret", ["", "rk_", "rk_" + "a" * 43, "k_local", "\udcff", "x" * 100_000])
def test_what_is_no_secret_finds_nobody(keys: Keys, secret: str) -> None:
    keys.create("ci", ["read"])
    assert keys.find(secret) is None


def test_admin_has_every_scope(keys: Keys) -> None:
    owner = keys.create("root", ["admin"]).row.owner
    assert owner.admin
    assert owner.scopes == set(SCOPES)


def test_a_revoked_key_is_refused_at_once_and_elsewhere_within_a_second(keys: Keys, database: Database) -> None:
    made, other_server = keys.create("ci", ["read"]), Keys(database)
    assert keys.find(made.secret)
    assert other_server.find(made.secret)
    revoked = keys.revoke(made.row.id)
    assert revoked.revoked is not None
    assert keys.find(made.secret) is None
    time.sleep(1.1)  # what the contract allows it to remember
    assert other_server.find(made.secret) is None
    assert keys.revoke(made.row.id) == revoked
    with pytest.raises(KeyNotFound):
        keys.revoke("k_000000000000")


def test_unknown_secrets_ask_the_database_together(
    keys: Keys, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = keys.create("a", ["read"]).secret
    since = time.monotonic()
    assert keys.is_known(secret, since)
    monkeypatch.setattr(keys_module, "_PAUSE_S", float("inf"))
    later, now = Keys(database).create("b", ["read"]).secret, time.monotonic()
    assert keys.is_known("rk_" + "z" * 43, since) is False
    assert keys.is_known(later, now) is None
    monkeypatch.setattr(keys_module, "_PAUSE_S", -1.0)
    assert keys.is_known(later, now)
    assert keys.is_known("rk_" + "z" * 43, now) is False


def test_an_expired_key_is_refused_also_when_it_was_seen_just_now(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    made = keys.create("ci", ["read"], expires_s=60)
    assert keys.find(made.secret)
    monkeypatch.setattr("relaxc.service.jobs.objects.keys.time.time", lambda: made.row.created + 61)
    assert keys.seen(made.secret) is None
    assert keys.find(made.secret) is None
    assert not keys.any_usable()


def test_once_a_key_was_made_nobody_is_served_without(keys: Keys, database: Database) -> None:
    assert not keys.any_made()
    assert keys.any_made_seen() is False
    made = Keys(database).create("ci", ["read"])
    keys.revoke(made.row.id)
    time.sleep(1.1)
    assert keys.any_made()
    assert not keys.any_usable()


@pytest.mark.parametrize(
    ("name", "scopes", "options"),
    [
        ("", ["read"], {}),
        ("a\nb", ["read"], {}),
        ("x" * 201, ["read"], {}),
        ("ci", [], {}),
        ("ci", ["write"], {}),
        ("ci", ["read"], {"expires_s": -1.0}),
        ("ci", ["read"], {"expires_s": float("nan")}),
        ("ci", ["read"], {"weight": 0.0}),
        ("ci", ["read"], {"weight": 1.0, "owner": "somebody"}),
    ],
)
def test_what_no_key_can_be_is_refused(keys: Keys, name: str, scopes: list[str], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        keys.create(name, scopes, **options)
    assert keys.list() == []


def test_a_rotated_key_asks_in_the_same_name_and_the_old_one_ends(keys: Keys) -> None:
    old = keys.create("ci", ["read", "tune"], expires_s=60)
    new = keys.rotate(old.row.id)
    assert new.row.owner_id == old.row.owner_id
    assert (new.row.name, new.row.scopes) == (old.row.name, old.row.scopes)
    assert new.row.expires == pytest.approx(new.row.created + 60)
    assert new.webhook_secret is None
    assert keys.find(old.secret) is None
    found = keys.find(new.secret)
    assert found is not None
    assert (found.owner.id, found.owner.key) == (old.row.owner_id, new.row.id)
    with pytest.raises(InvalidOption, match="is revoked") as refused:
        keys.rotate(old.row.id)
    assert f"--owner {old.row.owner_id}" in refused.value.remedy
    with pytest.raises(KeyNotFound):
        keys.rotate("k_000000000000")
    assert len(keys.list()) == 2


def test_with_a_grace_both_keys_work_until_it_is_over(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    old, brief = keys.create("ci", ["read"]), keys.create("brief", ["read"], expires_s=10)
    new = keys.rotate(old.row.id, grace_s=3600)
    keys.rotate(brief.row.id, grace_s=3600)
    assert keys.find(old.secret)
    assert keys.find(new.secret)
    for secret, after_s, served in ((old.secret, 3500, True), (old.secret, 3700, False), (brief.secret, 11, False)):
        now = time.time() + after_s
        with monkeypatch.context() as later:
            later.setattr("relaxc.service.jobs.objects.keys.time.time", lambda now=now: now)
            assert bool(keys.find(secret)) is served
    with pytest.raises(InvalidOption):
        keys.rotate(new.row.id, grace_s=-1)


def test_all_keys_of_an_owner_are_revoked_and_no_others(keys: Keys, database: Database) -> None:
    ann = Owners(database).create("ann")
    hers = [keys.create(name, ["read"], owner=who) for name, who in (("laptop", "ann"), ("ci", ann.id))]
    other = keys.create("bob", ["read"])
    assert {made.row.owner_id for made in hers} == {ann.id}
    assert other.row.owner_id not in (ann.id, other.row.id)
    assert [row.id for row in keys.list("ann")] == [made.row.id for made in reversed(hers)]
    revoked = keys.revoke_all("ann")
    assert {row.id for row in revoked} == {made.row.id for made in hers}
    assert not any(keys.find(made.secret) for made in hers)
    assert keys.find(other.secret)
    with pytest.raises(OwnerNotFound):
        keys.revoke_all("nobody")


def test_a_disabled_owners_keys_are_refused_until_it_is_enabled(keys: Keys, database: Database) -> None:
    made = keys.create("ci", ["read"])
    owners, elsewhere = Owners(database), Keys(database)
    owners.change(made.row.owner_id, disabled=True)
    assert elsewhere.find(made.secret) is None
    assert not keys.any_usable()
    assert keys.any_made()
    owners.change(made.row.owner_id, disabled=False)
    assert elsewhere.find(made.secret)
    assert keys.any_usable()


def test_the_audit_log_gives_the_newest_first(database: Database) -> None:
    rows = [AuditRow(float(i), f"k_{i % 2}", "POST /v1/jobs", f"j_{i}", "202", "::1", {"request": i}) for i in range(5)]
    with database.begin() as connection:
        audit.append(connection, rows)
        audit.append(connection, [])
    with database.read() as connection:
        assert audit.newest(connection, 3) == rows[:1:-1]
        assert audit.newest(connection, 9, key="k_1") == [rows[3], rows[1]]

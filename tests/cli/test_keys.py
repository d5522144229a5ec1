"""`relaxc keys`: made, listed, revoked, for a script and for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Relaxc


@pytest.mark.slow
def test_a_key_is_made_shown_once_listed_and_revoked(relaxc: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    done = relaxc("keys", "create", "ci", "--scope", "tune", "--scope", "read", "--expires-days", "1", "--json", **here)
    made = json.loads(done.stdout)
    assert done.returncode == 0
    assert made["secret"].startswith("rk_")
    assert made["scopes"] == ["read", "tune"]
    listed = relaxc("keys", "ls", "--json", **here)
    assert made["secret"] not in listed.stdout
    [row] = json.loads(listed.stdout)["keys"]
    assert row["id"] == made["id"]
    assert row["expires"] is not None
    revoked = relaxc("keys", "revoke", made["id"], **here)
    assert f"{made['id']} (ci) is revoked" in revoked.stdout
    assert json.loads(relaxc("keys", "ls", "--json", **here).stdout)["keys"][0]["revoked"]


def test_people_see_the_secret_and_that_it_is_shown_once(called: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    done = called("keys", "create", "laptop", **here)
    assert "rk_" in done.stdout
    assert "compile read" in done.stdout
    assert "not shown again" in done.stdout
    assert "laptop" in called("keys", "ls", **here).stdout


def test_mistakes_have_codes(called: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    wrong = called("keys", "create", "ci", "--scope", "everything", **here)
    assert wrong.returncode == 2
    assert "[invalid-option]" in wrong.stderr
    assert "[key-not-found]" in called("keys", "revoke", "k_none", **here).stderr


def test_a_lost_key_is_rotated_and_all_keys_of_an_owner_are_revoked(called: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    ann = json.loads(called("owners", "create", "ann", "--weight", "2", "--json", **here).stdout)
    lost = json.loads(called("keys", "create", "laptop", "--owner", "ann", "--json", **here).stdout)
    assert (lost["owner"], lost["webhook_secret"]) == (ann["id"], None)
    found = json.loads(called("keys", "rotate", lost["id"], "--grace-hours", "1", "--json", **here).stdout)
    assert (found["owner"], found["revoked"]) == (ann["id"], None)
    assert found["secret"] != lost["secret"]
    rows = json.loads(called("keys", "ls", "--owner", "ann", "--json", **here).stdout)["keys"]
    assert [(row["id"], row["expires"] is None) for row in rows] == [(found["id"], True), (lost["id"], False)]
    assert called("keys", "revoke", "--owner", "ann", **here).stdout.count("is revoked since") == 2
    assert called("keys", "revoke", **here).returncode == 2


def test_an_owner_is_listed_shown_and_changed(called: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    assert "whsec_" in called("owners", "create", "ann", **here).stdout
    assert "whsec_" not in called("owners", "ls", **here).stdout
    changed = called("owners", "set", "ann", "--weight", "3", "--disable", "--json", **here)
    assert json.loads(changed.stdout)["disabled"]
    shown = json.loads(called("owners", "show", "ann", "--json", **here).stdout)
    assert (shown["weight"], shown["name"]) == (3.0, "ann")
    assert json.loads(called("owners", "set", "ann", "--enable", "--json", **here).stdout)["disabled"] is None
    assert "whsec_" in called("owners", "set", "ann", "--new-webhook-secret", **here).stdout
    assert "[invalid-option]" in called("owners", "set", "ann", **here).stderr
    assert "[owner-not-found]" in called("owners", "show", "bob", **here).stderr
    assert called("owners", "ls", **here).stdout.count("k_local") == 1


def test_an_owners_quotas_are_set_and_shown(called: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    called("owners", "create", "ann", **here)
    done = called(
        "owners", "set", "ann", "--bytes", "1048576", "--tuning-hours", "1.5", "--queued-jobs", "unlimited", **here
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(called("owners", "show", "ann", "--json", **here).stdout)["quotas"]
    assert {name: row["limit"] for name, row in shown.items()} == {
        "queued_jobs": None, "running_jobs": None, "bytes": 1 << 20, "tuning_hours": 1.5,
    }  # fmt: skip
    called("owners", "set", "ann", "--queued-jobs", "default", **here)
    text = called("owners", "show", "ann", **here).stdout
    assert "1.0 MiB" in text
    assert "unlimited" in text
    assert "32" in text
    for wrong in ("many", "-1", "nan"):
        refused = called("owners", "set", "ann", f"--bytes={wrong}", **here)
        assert "[invalid-option]" in refused.stderr, wrong
    assert "[invalid-option]" in called("quota", **here).stderr


def test_each_change_is_a_row_of_the_audit_log(called: Relaxc, tmp_path: Path) -> None:
    here = {"RELAXC_CACHE_DIR": str(tmp_path)}
    ann = json.loads(called("owners", "create", "ann", "--json", **here).stdout)
    key = json.loads(called("keys", "create", "laptop", "--owner", "ann", "--json", **here).stdout)
    new = json.loads(called("keys", "rotate", key["id"], "--json", **here).stdout)
    called("owners", "set", "ann", "--disable", "--bytes", "7", **here)
    called("owners", "set", "ann", "--enable", **here)
    called("keys", "revoke", new["id"], **here)
    called("keys", "revoke", "--owner", ann["id"], **here)
    for failed in (("keys", "revoke", "k_none"), ("owners", "set", "bob", "--enable"), ("keys", "ls")):
        called(*failed, **here)
    text = called("audit", "--json", **here).stdout
    rows = [json.loads(line) for line in reversed(text.splitlines())]
    assert [(row["action"], row["object"]) for row in rows] == [
        ("relaxc owners create", ann["id"]),
        ("relaxc keys create", key["id"]),
        ("relaxc keys rotate", key["id"]),
        ("relaxc owners set", ann["id"]),
        ("relaxc owners set", ann["id"]),
        ("relaxc keys revoke", new["id"]),
        ("relaxc keys revoke", ann["id"]),
    ]
    assert all(row["detail"]["user"] and row["outcome"] == "done" for row in rows)
    assert rows[2]["detail"]["key"] == new["id"]
    assert rows[3]["detail"]["changed"] == ["bytes", "disabled"]
    assert not any(secret in text for secret in (key["secret"], new["secret"], "whsec_"))

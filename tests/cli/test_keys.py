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

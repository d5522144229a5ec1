"""Owners: made, found by id or name, changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from relaxc.service.errors import InvalidOption, OwnerNotFound
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.objects.owners import Owners


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    with closing(Database(f"sqlite:///{tmp_path / 'keys.sqlite3'}")) as database:
        yield Owners(database)


def test_everybody_without_a_key_is_an_owner_from_the_first(owners: Owners) -> None:
    assert [row.id for row in owners.list()] == ["k_local"]


def test_an_owner_is_found_by_its_id_and_by_a_name_that_nobody_else_has(owners: Owners) -> None:
    ann, one, two = owners.create("ann"), owners.create("bob"), owners.create("bob", weight=2.0)
    assert ann.id.startswith("o_")
    assert owners.find("ann") == owners.find(ann.id) == ann
    with pytest.raises(InvalidOption, match="2 owners are named 'bob'") as refused:
        owners.find("bob")
    assert refused.value.fields["owners"] == [one.id, two.id]
    assert owners.find(two.id).weight == 2.0
    for unknown in ("eve", "o_000000000000", "", "a\0b"):
        with pytest.raises(OwnerNotFound):
            owners.find(unknown)


def test_what_is_given_is_changed_and_the_rest_stays(owners: Owners) -> None:
    ann = owners.create("ann")
    changed = owners.change("ann", weight=3.0)
    assert (changed.name, changed.weight, changed.webhook_secret) == ("ann", 3.0, ann.webhook_secret)
    assert owners.change(ann.id, name="Ann") == owners.find("Ann")
    assert owners.change(ann.id, new_webhook_secret=True).webhook_secret not in (ann.webhook_secret, "")
    assert owners.change(ann.id, disabled=True).disabled is not None
    assert owners.change(ann.id) == owners.find(ann.id)
    assert "whsec_" not in str(ann.to_dict())


@pytest.mark.parametrize("options", [{"name": ""}, {"name": "a\nb"}, {"weight": 0.0}, {"weight": float("nan")}])
def test_what_no_owner_can_be_is_refused(owners: Owners, options: dict[str, object]) -> None:
    ann = owners.create("ann")
    with pytest.raises(InvalidOption):
        owners.change("ann", **options)  # type: ignore[arg-type]  # as the case says
    with pytest.raises(InvalidOption):
        owners.create(**{"name": "eve", **options})  # type: ignore[arg-type]  # as the case says
    assert owners.find("ann") == ann

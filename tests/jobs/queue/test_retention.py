"""Nothing is kept without a rule: each table, each kind of blob, each folder of the cache."""

from __future__ import annotations

import pytest

from relaxc.service.config import Settings
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.blobs.local import KINDS
from relaxc.service.jobs.database.orphans import LOCAL
from relaxc.service.jobs.database.tables import metadata
from relaxc.service.jobs.queue.retention import RULES, Place, Removed, Rule
from tests.jobs.conftest import OpenBackend
from tests.jobs.queue.test_desk import ANN, asks, end_of

HOW = "write a rule into service/jobs/queue/retention.py, and what follows it into sweep.py"


def names(place: Place) -> set[str]:
    return {rule.name for rule in RULES if rule.place is place}


def test_every_table_has_a_rule() -> None:
    assert names(Place.TABLE) == set(metadata.tables), HOW


def test_every_kind_of_blob_has_a_rule_here_and_in_the_bucket() -> None:
    assert names(Place.BUCKET) == set(KINDS), HOW
    assert names(Place.BLOBS) == {*LOCAL, "uploads", ".staging"}, HOW


def test_one_thing_has_one_rule() -> None:
    assert len({(rule.place, rule.name) for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.place}-{rule.name}")
def test_a_rule_has_a_setting_or_says_why_not(rule: Rule) -> None:
    if rule.setting is None:
        assert rule.deleted.startswith(("never: ", "of owners", "folders of", "locks", "what dead", "by "))
    else:
        assert rule.setting in Settings.model_fields


def test_what_a_server_leaves_in_its_cache_has_rules(open_backend: OpenBackend) -> None:
    backend = open_backend()
    end_of(backend, ANN, backend.jobs.submit(ANN, asks(backend)).job.id)
    backend.sweep()
    assert left(backend, ".") <= names(Place.CACHE), HOW
    assert left(backend, "blobs") <= names(Place.BLOBS), HOW


def left(backend: Backend, folder: str) -> set[str]:
    found = {path.name for path in (backend.store.root / folder).iterdir()}
    return {name.removesuffix("-wal").removesuffix("-shm") for name in found}


def test_what_no_rule_counts_is_not_counted() -> None:
    with pytest.raises(KeyError):
        Removed().add(Place.TABLE, "jobz")

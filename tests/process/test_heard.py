"""What of a child's words is taken, and how much of how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from relaxc.service.errors import CompileFailed, UnsupportedModel
from relaxc.service.process.bounds import MAX_OUTCOME_BYTES, bounded, checked
from relaxc.service.process.heard import Heard
from relaxc.service.process.task import finite


def heard(*messages: dict[str, Any]) -> tuple[Heard, list[dict[str, Any]]]:
    """What is kept of these, after the guard's first, and the events."""
    found, events = Heard(), []
    for message in ({"event": "started", "pid": 7}, *messages):
        found.take(dict(message), events.append)
    return found, events


@pytest.mark.parametrize("kind", ["state", "done", "started", "", None, 3, ["log"], {"a": 1}, "log\nevent: done"])
def test_only_what_a_child_may_tell_is_passed_on(kind: Any) -> None:
    assert heard({"event": kind, "state": "succeeded", "pid": 1})[1] == []


@pytest.mark.parametrize("kind", ["stage", "progress", "log", "metric"])
def test_what_it_may_tell_is(kind: str) -> None:
    assert heard({"event": kind, "value": 1})[1] == [{"event": kind, "value": 1}]


def test_what_is_too_deep_to_be_looked_at_is_skipped() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert heard({"event": "log", "deep": deep}, {"event": "log"})[1] == [{"event": "log"}]


def test_half_surrogates_and_what_is_no_number_become_text() -> None:
    found, events = heard(
        {"event": "stage", "state": "start", "stage": "a\ud800b"},
        {"event": "error", "error": {"\udfff": ["\ud83d\ude00", float("nan")]}},
    )
    assert found.stage == events[0]["stage"] == "a\N{REPLACEMENT CHARACTER}b"
    assert found.error == {"\N{REPLACEMENT CHARACTER}": ["\N{GRINNING FACE}", "nan"]}
    assert finite({"x": (1, "ok", None, True)}) == {"x": [1, "ok", None, True]}


def test_a_result_is_taken_whole_or_not_at_all() -> None:
    small = {"text": "x" * (MAX_OUTCOME_BYTES - 100)}
    assert checked(small) is small
    assert checked(None) is None
    with pytest.raises(CompileFailed, match="over 1048576"):
        checked({"text": "x" * MAX_OUTCOME_BYTES})


def test_an_error_keeps_its_code_and_the_beginning_of_its_message() -> None:
    small = UnsupportedModel("no Frob", nodes=["a"])
    assert bounded(small) is small
    large = bounded(UnsupportedModel("no Frob", remedy="r" * 2_000_000, nodes=["n" * MAX_OUTCOME_BYTES]))
    assert isinstance(large, UnsupportedModel)
    assert large.message.startswith("no Frob")
    assert large.fields.keys() == {"left_out_bytes"}
    assert large.remedy == UnsupportedModel.remedy

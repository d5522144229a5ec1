"""Runs of a moved reference: ahead of who asks for them, in an order that does not depend on when that is."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from service.errors import ModelMalformed
from service.runtime.moved import MORE
from service.runtime.moved_runs import MovedRuns
from tests.waiting import until


class Counted:
    """A reference each of whose runs says which of all it was, and on which inputs."""

    def __init__(self) -> None:
        self.count = 0
        self.threads: list[int] = []

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.count += 1
        self.threads.append(threading.get_ident())
        return {"y": (inputs["x"], self.count)}


A, B = {"x": "a"}, {"x": "b"}


@pytest.mark.parametrize("ahead", [True, False])
def test_runs_are_in_the_order_in_which_they_were_asked_for(ahead: bool) -> None:
    each = Counted()
    with MovedRuns(lambda: [each, each], ahead=ahead) as runs:
        assert [run["y"] for run in runs.first(A)] == [("a", 1), ("a", 2)]
        assert [run["y"][1] for run in runs.more(A)] == list(range(3, 3 + 2 * MORE))
        assert runs.first(B)[0]["y"] == ("b", 3 + 2 * MORE)
    assert (threading.get_ident() in each.threads) == (not ahead)


def test_what_is_announced_has_run_when_it_is_asked_for() -> None:
    each = Counted()
    with MovedRuns(lambda: [each], ahead=True) as runs:
        runs.announce(A)
        runs.announce(B)
        until(lambda: each.count == 2)
        assert runs.more(A)[0]["y"] == ("a", 3)
        assert [runs.first(inputs)[0]["y"] for inputs in (B, A, A)] == [("b", 2), ("a", 1), ("a", 3 + MORE)]
        assert runs.references() == [each]


def test_announcing_is_nothing_where_references_share_something() -> None:
    each = Counted()
    with MovedRuns(lambda: [each], ahead=False) as runs:
        runs.announce(A)
        assert each.count == 0 and len(set(each.threads)) == 0


def test_a_run_that_stops_says_so_to_who_asks_for_it() -> None:
    def stops(inputs: Mapping[str, Any]) -> dict[str, Any]:
        raise ModelMalformed("it stops")

    with MovedRuns(lambda: [stops], ahead=True) as runs:
        runs.announce(A)
        with pytest.raises(ModelMalformed, match="it stops"):
            runs.first(A)


def test_no_run_begins_once_it_is_left() -> None:
    began, goes_on, each = threading.Event(), threading.Event(), Counted()

    def waits(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        began.set()
        goes_on.wait(60)
        return each(inputs)

    runs = MovedRuns(lambda: [waits], ahead=True)
    runs.announce(A)
    runs.announce(B)
    began.wait(60)
    threading.Timer(0.1, goes_on.set).start()
    with runs:
        pass
    assert each.count == 1

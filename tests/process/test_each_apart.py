"""Calls in forks: all are answered, a death is one call's own, and no fork has what is another's."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from relaxc.service.process.each_apart import each_apart


def test_every_call_is_answered_in_a_process_of_its_own() -> None:
    calls = [lambda i=i: f"{i} {os.getpid()}".encode() * 100_000 for i in range(5)]
    answers = sorted(each_apart(calls, at_once=2), key=lambda answer: answer.index)
    assert [answer.data[:1] for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
    assert len({bytes(answer.data[:12]) for answer in answers}) == 5
    assert all(len(answer.data) > 300_000 for answer in answers)


def test_a_process_that_dies_costs_its_own_answer(capfd) -> None:
    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    def fail() -> bytes:
        raise ValueError("no")

    found = {answer.index: answer for answer in each_apart([die, lambda: b"well", fail], at_once=2)}
    assert found[1].data == b"well"
    assert found[0].data is None
    assert os.WTERMSIG(found[0].status) == signal.SIGKILL
    assert found[2].data is None
    assert os.WEXITSTATUS(found[2].status) == 70
    assert not list(each_apart([], at_once=2))


def opened() -> set[str]:
    """What this process has open."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add(str(path.readlink()))
    return found


def test_a_fork_has_no_descriptor_that_is_anothers(tmp_path: Path) -> None:
    with (tmp_path / "own").open("w") as own:
        before = opened()
        answers = list(each_apart([lambda: "\n".join(opened()).encode()] * 3, at_once=3, closed=[own.fileno()]))
    for answer in answers:
        found = set((answer.data or b"").decode().split("\n"))
        assert str(tmp_path / "own") not in found
        assert sum(text.startswith("pipe:") for text in found - before) == 1

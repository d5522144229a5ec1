"""Builders elsewhere: what is asked for over the line, and what an answer comes to."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.process.line import Line
from relaxc.service.process.task import Lines, send
from relaxc.service.tuning.measure.far_builders import FarBuilders, asked_build, packed
from relaxc.service.tuning.measure.messages import Build, Built, emitted_beside
from relaxc.service.tuning.measure.pool import Done, Lost, collect
from relaxc.service.tuning.task import How

ABOUT = {"target": {"name": "x"}, "rules": ["r"], "memory_bytes": 7, "cpus": [0]}


@pytest.fixture
def ends() -> Iterator[tuple[FarBuilders, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield FarBuilders(Line(ours), 2, ABOUT), theirs


def build(out: Path) -> Build:
    """A build of a plan that is emitted anew."""
    return Build("{func}", How("rule", 1, {"rows": 4}, ""), str(out), "{group}", {"m": 3})


def asked(theirs: socket.socket) -> dict[str, Any]:
    """The next question."""
    found = Lines(theirs).next()
    assert found is not None
    return found[0]


def test_a_library_that_was_built_elsewhere_is_where_it_was_wanted(
    ends: tuple[FarBuilders, socket.socket], tmp_path: Path
) -> None:
    builders, theirs = ends
    wanted, made = build(tmp_path / "here.so"), tmp_path / "there.so"
    builders.submit("first", wanted, 20.0)
    assert (builders.free, builders.busy) == (1, 1)
    question = asked(theirs)
    assert (question["event"], question["target"], question["memory_bytes"]) == ("ask", ABOUT["target"], 7)
    there = asked_build(question, made)
    assert (there.func_json, there.how, there.group_json, there.operator) == (
        wanted.func_json,
        wanted.how,
        wanted.group_json,
        wanted.operator,
    )
    assert there.out == str(made)
    made.write_bytes(b"\x7fELF")
    emitted_beside(str(made)).write_text("{emitted}")
    send(theirs, {**packed(Built("built"), made), "build": question["build"]})
    ((_, done),) = collect(builders)
    assert done == Done("first", Built("built"))
    assert Path(wanted.out).read_bytes() == b"\x7fELF"
    assert emitted_beside(wanted.out).read_text() == "{emitted}"
    assert (builders.free, builders.busy) == (2, 0)


@pytest.mark.parametrize(
    ("answer", "meant"),
    [
        ({"kind": "refused", "detail": "no"}, Built("refused", "no")),
        ({"kind": "build-failed", "detail": "LLVM"}, Built("build-failed", "LLVM")),
        ({"kind": "crashed", "detail": "its node"}, Lost("crashed", "its node")),
        ({"kind": "hung", "detail": "late"}, Lost("hung", "late")),
        ({"kind": 7}, Built("build-failed", "an answer that means nothing: 7")),
    ],
)
def test_what_was_not_built_says_why(
    ends: tuple[FarBuilders, socket.socket], tmp_path: Path, answer: dict[str, Any], meant: Any
) -> None:
    builders, theirs = ends
    builders.submit(3, build(tmp_path / "x.so"), 20.0)
    send(theirs, {**answer, "build": asked(theirs)["build"]})
    assert [done for _, done in collect(builders)] == [Done(3, meant)]
    assert not (tmp_path / "x.so").exists()


def test_answers_to_what_was_dropped_are_not_heard(ends: tuple[FarBuilders, socket.socket], tmp_path: Path) -> None:
    builders, theirs = ends
    builders.submit(1, build(tmp_path / "1.so"), 20.0)
    first = asked(theirs)["build"]
    builders.drop_busy()
    builders.submit(2, build(tmp_path / "2.so"), 20.0)
    second = asked(theirs)["build"]
    library = base64.b64encode(b"x").decode()
    send(theirs, {"kind": "built", "library": library, "build": first})
    send(theirs, {"kind": "built", "library": library, "build": second})
    assert [done for _, done in collect(builders)] == [Done(2, Built("built"))]
    assert not (tmp_path / "1.so").exists()


def test_what_nobody_answers_hangs(
    ends: tuple[FarBuilders, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaxc.service.tuning.measure.far_builders._LATE_S", 0.0)
    builders, _ = ends
    builders.submit(1, build(tmp_path / "1.so"), 0.05)
    time.sleep(0.06)
    ((_, done),) = collect(builders)
    assert isinstance(done.answer, Lost) and done.answer.kind == "hung"


def test_builders_whose_asker_has_gone_end(ends: tuple[FarBuilders, socket.socket], tmp_path: Path) -> None:
    builders, theirs = ends
    builders.submit(1, build(tmp_path / "1.so"), 20.0)
    theirs.close()
    with pytest.raises(EOFError):
        collect(builders)

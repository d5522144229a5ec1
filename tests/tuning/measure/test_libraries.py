"""Libraries: what was measured is kept for comparisons, all else is removed."""

from __future__ import annotations

from pathlib import Path

from relaxc.service.tuning.measure.libraries import Libraries
from relaxc.service.tuning.measure.outcome import Outcome
from tests.tuning.synthetic import DEFAULT, task

TASK = task("one")


def built(libraries: Libraries) -> str:
    path = libraries.new()
    Path(path).write_text("library")
    return path


def point(rows: int) -> dict[str, int]:
    return {**DEFAULT, "rows": rows}


def test_only_what_was_measured_is_kept(tmp_path: Path) -> None:
    libraries = Libraries(tmp_path)
    good, bad = built(libraries), built(libraries)
    measured = Outcome(point(1), "measured", 1e-3)
    libraries.keep(TASK, measured, good)
    libraries.keep(TASK, Outcome(point(2), "wrong"), bad)
    assert libraries.find(TASK, dict(reversed(point(1).items()))) == (measured, good)
    assert libraries.find(TASK, point(2)) is None
    assert libraries.find(task("other"), point(1)) is None
    assert [str(path) for path in tmp_path.iterdir()] == [good]


def test_the_oldest_goes_first_and_a_point_has_one(tmp_path: Path) -> None:
    libraries = Libraries(tmp_path, most=2)
    paths = {}
    for rows in (1, 2, 1, 3):
        paths[rows] = built(libraries)
        libraries.keep(TASK, Outcome(point(rows), "measured", 1e-3), paths[rows])
    assert libraries.find(TASK, point(2)) is None
    assert {str(path) for path in tmp_path.iterdir()} == {paths[1], paths[3]}


def test_what_is_looked_for_stays(tmp_path: Path) -> None:
    libraries = Libraries(tmp_path, most=2)
    for rows in (1, 2):
        libraries.keep(TASK, Outcome(point(rows), "measured", 1e-3), built(libraries))
    assert libraries.find(TASK, point(1)) is not None
    libraries.keep(TASK, Outcome(point(3), "measured", 1e-3), built(libraries))
    assert libraries.find(TASK, point(1)) is not None
    assert libraries.find(TASK, point(2)) is None


def test_one_that_was_never_built_may_be_let_go(tmp_path: Path) -> None:
    libraries = Libraries(tmp_path)
    libraries.keep(TASK, Outcome(point(1), "refused"), libraries.new())
    assert not list(tmp_path.iterdir())

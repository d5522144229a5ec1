"""The picture of a run: XML that every viewer takes, whatever tasks and models are called."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from relaxc.service.tuning.curve import curve_svg

HOSTILE = '</text><script>alert("x")</script>\x00\x1b&\ud800'


def task(name: str, **changed: Any) -> dict[str, Any]:
    curve = [[1, 0.5, 2e-3], [9, 3.0, 1e-3]]
    return {"name": name, "untuned_s": 2e-3, "weight": 1, "trials": 16, "curve": curve, **changed}


def drawn(*tasks: dict[str, Any], title: str = "a model") -> ElementTree.Element:
    return ElementTree.fromstring(curve_svg({"tasks": tasks, "seconds": 7.5}, title))


def test_a_line_has_a_step_for_each_best_and_goes_on_to_the_end() -> None:
    paths = [each.get("d", "") for each in drawn(task("matmul")).iter() if each.get("stroke-width") == "1.5"]
    assert len(paths) == 2  # by trials, by seconds
    assert [(path.count("H"), path.count("V")) for path in paths] == [(2, 2), (2, 2)]
    assert "H460.0" in paths[0]  # the last trial is at the right end


def test_names_are_text_and_nothing_else() -> None:
    root = drawn(task(HOSTILE), title=HOSTILE)
    assert not [each for each in root.iter() if each.tag.endswith("script")]
    assert any("alert" in (each.text or "") for each in root.iter())


def test_a_run_without_a_curve_is_drawn_empty() -> None:
    for tasks in ((), (task("never", curve=[], untuned_s=None),)):
        assert not [each for each in drawn(*tasks).iter() if each.get("stroke-width") == "1.5"]


def test_ten_tasks_are_named() -> None:
    names = [each.text for each in drawn(*(task(f"task{i}", weight=i) for i in range(14))).iter()]
    assert "task13" in names and "task4" in names and "task3" not in names

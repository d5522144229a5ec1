"""docs/layout.md: its tree fits on a screen, the path of a request is short, its layers are those enforced."""

from __future__ import annotations

import re

from docs.layout_page import tree
from tests.test_layers import LEVELS, ROOT

PAGE = (ROOT / "docs/layout.md").read_text(encoding="utf-8")
LINES, COLUMNS = 88, 150


def test_the_tree_fits_on_one_screen_and_has_a_phrase_for_every_room() -> None:
    lines = tree().splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS
    assert all(re.search(r"\S {2,}\S", line.strip()) for line in lines)
    assert tree() in PAGE  # that every package is in it, `tree` itself sees to


def test_the_path_of_a_request_has_at_most_fifteen_steps_and_each_names_a_file() -> None:
    path = PAGE.split("## The path of one request")[1].split("\n## ")[0]
    steps = re.split(r"^\d+\. ", path, flags=re.MULTILINE)[1:]
    assert 0 < len(steps) <= 15
    assert all(re.search(r"`(service|schedules)/[\w/.]+\.py`", step) for step in steps)


def test_the_layers_are_those_that_are_enforced() -> None:
    levels = {}
    for number, names in re.findall(r"^(\d+) +(\S+(?:  ?\S+)*?)(?: {3,}.*)?$", PAGE, re.MULTILINE):
        levels |= dict.fromkeys(re.split(" +", names), int(number))
    assert levels == {name: level for name, level in LEVELS.items() if name != "__main__"}

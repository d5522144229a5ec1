"""What only strict mode shows: it is on in every test, and in the processes that tests start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relaxc.schedules.ir.unchecked import UNCHECKED, unchecked_schedule
from relaxc.schedules.strict import STRICT, NotStrict, made_up_for
from relaxc.service.process.scrubbed import scrubbed_environment

ROOT = Path(__file__).parents[2]


def test_tests_are_strict_and_so_are_their_workers() -> None:
    assert STRICT in scrubbed_environment()
    with pytest.raises(NotStrict, match="a step went wrong"):
        made_up_for("a step went wrong")


def test_a_compile_goes_on(monkeypatch) -> None:
    monkeypatch.delenv(STRICT)
    made_up_for("a step went wrong")


def test_a_schedule_is_unchecked_for_a_reason() -> None:
    with pytest.raises(KeyError):
        unchecked_schedule(None, "cpu.matmul")
    files = [path for folder in ("schedules", "service") for path in (ROOT / folder).rglob("*.py")]
    text = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    assert [name for name in text if "enable_check" in text[name]] == ["schedules/ir/unchecked.py"]
    used = [found for each in text.values() for found in re.findall(r"unchecked_schedule\(\w+, (\w+)\.name\)", each)]
    assert len(used) == len(UNCHECKED)

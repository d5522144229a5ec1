"""Sizes and times for people, JSON for programs."""

from __future__ import annotations

import json

import pytest

from service.cli.output import print_json, seconds, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (44_700_000, "42.6 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("value", "text"), [(61.234, "61.23 s"), (0.0031, "3.1 ms"), (1.2e-5, "12 µs"), (0.0, "0 µs")])
def test_durations(value: float, text: str) -> None:
    assert seconds(value) == text


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("nan"), 1.5, (float("inf"),)], "b": {1: "é"}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, 1.5, [None]], "b": {"1": "é"}}

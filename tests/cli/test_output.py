"""Sizes and times for people, JSON for programs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from relaxc.service.cli import report
from relaxc.service.cli.output import console, print_json, seconds, size, table
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec


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


def test_names_are_never_markup() -> None:
    """`[batch]` is a shape and `:smile:` a name, whoever made the model."""
    stream = io.StringIO()
    shown = table("[b]title[/b]", "[red]column", "n", numbers=("n",))
    shown.add_row("[batch]", ":smile: [/]")
    console(stream).print(shown)
    for text in ("[b]title[/b]", "[red]column", "[batch]", ":smile: [/]"):
        assert text in stream.getvalue()


def test_a_signature_shows_what_its_sizes_must_satisfy(capsys: pytest.CaptureFixture[str]) -> None:
    condition = Condition("n % 2 == 0", "node 'halves' (Split) has two equal parts")
    shown = Signature((TensorSpec("x", "float32", ("n",)),), (), (("n", DimBounds(2)),), conditions=(condition,))
    Console(width=200).print(report.signature("", shown.to_dict()))
    line = next(line for line in capsys.readouterr().out.splitlines() if "must hold" in line)
    assert "node 'halves' (Split)" in line and "n % 2 == 0" in line

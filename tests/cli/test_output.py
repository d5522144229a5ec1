"""Sizes and times for people, JSON for programs."""

from __future__ import annotations

import io
import json

import pytest

from service.cli.output import console, print_json, seconds, size, table


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

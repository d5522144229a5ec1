"""`relaxc config`: the settings in force, and where each comes from."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, print_json, table

if TYPE_CHECKING:
    from relaxc.service.config import Settings

__all__ = ["config", "warnings"]

_PREFIX = "RELAXC_"
_OTHERS = tuple(f"{_PREFIX}{name}" for name in ("BENCH_", "BEHIND_", "NEW_SECRET", "SCREENSHOTS", "STRICT", "TEST_"))
"""Variables of tests, benchmarks and processes of ours, which are no settings."""


def config(
    all: Annotated[bool, typer.Option("--all", help="Show the settings that have their default, too.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show the settings of this environment that differ from their defaults, and the variables that set them.

    Names are those of `RELAXC_…` variables; docs/settings.md explains each. Secrets are shown as asterisks.
    """
    from relaxc.service.config import settings

    rows = _rows(settings())
    if json:
        print_json({"settings": rows, "unknown": _unknown_names()})
        return
    shown = table("", "setting", "value", "default")
    for name, row in rows.items():
        if all or row["set"]:
            shown.add_row(name, str(row["value"]), str(row["default"]))
    if shown.row_count:
        console().print(shown)
    else:
        print("Every setting has its default; --all shows them.")


def _unknown_names() -> list[str]:
    """Return the variables of the environment that look like a setting and are none."""
    from relaxc.service.config import Settings

    names = {f"{_PREFIX}{name.upper()}" for name in Settings.model_fields}
    return sorted(
        name for name in os.environ if name.startswith(_PREFIX) and name not in names and not name.startswith(_OTHERS)
    )


def warnings() -> list[str]:
    """Return a line for each unknown variable, with the setting that it may mean."""
    return [_warning(name) for name in _unknown_names()]


def _warning(name: str) -> str:
    from relaxc.service.config import Settings

    known = [f"{_PREFIX}{field.upper()}" for field in Settings.model_fields]
    near = difflib.get_close_matches(name, known, 1, 0.8)
    return f"{name} is no setting of relaxc" + (f"; did you mean {near[0]}?" if near else "")


def _rows(values: Settings) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for field, info in type(values).model_fields.items():
        name = f"{_PREFIX}{field.upper()}"
        default = info.get_default(call_default_factory=True)
        value = getattr(values, field)
        found[name] = {"value": _plain(value), "default": _plain(default), "set": name in os.environ}
    return found


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

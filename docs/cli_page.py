"""docs/cli.md: every verb with its help, arguments and options, from the commands themselves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import typer.main

from relaxc.service.cli.app import app

__all__ = ["cli_page", "verbs"]

# What nearly every verb takes: said once.
_COMMON = ("json", "verbose", "help")


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb by its words, `compile`, `cache ls`, in the order of the help; a group before what is in it."""
    yield from _below("", typer.main.get_command(app))


def cli_page() -> str:
    """The page: `relaxc`'s own options, then a section a verb."""
    root = typer.main.get_command(app)
    sections = "\n".join(_section(words, command) for words, command in verbs())
    return f"""# Commands

Generated from `service/cli/` by `python -m docs.generate`; do not edit.

`relaxc VERB --help` prints the same. Every verb has `--verbose`, which shows the trace of an error; all but `serve`,
`worker` and `records export` have `--json`, which prints one JSON object on stdout, errors included.
[errors.md](errors.md) has the exit codes, [settings.md](settings.md) the variables behind the defaults. Before the verb
may stand:

{_table(root)}
{sections}"""


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        inner = f"{words} {name}".strip()
        yield inner, child
        yield from _below(inner, child)


def _section(words: str, command: Any) -> str:
    if hasattr(command, "commands"):
        return f"## relaxc {words}\n\n{_help(command)}\n"
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    shown = "".join(f" {_metavar(each)}" for each in arguments)
    depth = "#" * (2 + words.count(" "))
    parts = f"{depth} relaxc {words}", f"`relaxc {words}{shown}`", _help(command), _table(command).strip()
    return "\n\n".join(part for part in parts if part) + "\n"


def _help(command: Any) -> str:
    return "\n\n".join(textwrap.fill(part, 120, break_on_hyphens=False) for part in command.help.split("\n\n"))


def _table(command: Any) -> str:
    rows = [_row(each) for each in command.params if each.name not in _COMMON]
    return "| | |\n| --- | --- |\n" + "".join(rows) if rows else ""


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    value = f" {_metavar(parameter)}" if is_option and not parameter.is_flag else ""
    name = ", ".join([*parameter.opts, *parameter.secondary_opts]) + value if is_option else _metavar(parameter)
    required = " Required." if parameter.required and is_option else ""
    cells = f"`{name}`", parameter.help + required + _default(parameter)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(parameter: Any) -> str:
    """Where it is worth saying: an option that is off, or decided elsewhere, has none."""
    value = parameter.default
    is_none = not parameter.show_default or isinstance(value, bool | None) or value == "" or callable(value)
    return "" if is_none else f" Default: `{value}`."


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.rpartition("_")[2].upper())

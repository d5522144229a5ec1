"""Options that several verbs share, with their help, and the reading of their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from service.errors import InvalidOption, InvalidShape

__all__ = ["Artifact", "Json", "Seed", "Threads", "Verbose", "parse_shapes"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, errors included.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the trace of an error, and the full log.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random inputs.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Threads to run with; all cores if not given."),
]
Artifact = Annotated[
    Path, typer.Argument(metavar="OUT.so", help="A file that `relaxc compile` wrote.", show_default=False)
]

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_shapes(given: list[str]) -> dict[str, list[int | str]]:
    """`["x=1,3,224,224", "mask=batch,seq"]` as dims by input name; `x=` is a scalar.

    Raises InvalidOption where the text is not NAME=DIMS, InvalidShape for a dim that is neither a size
    nor a name. Input names may hold `=`, dims never do.
    """
    shapes: dict[str, list[int | str]] = {}
    for text in given:
        name, equals, dims = text.rpartition("=")
        if not equals or not name:
            raise InvalidOption(f"--shape takes NAME=1,3,224,224, got {text!r}", option="shape")
        if name in shapes:
            raise InvalidShape(f"--shape names {name!r} twice", name=name)
        shapes[name] = [_dim(name, dim.strip()) for dim in dims.split(",")] if dims.strip() else []
    return shapes


def _dim(name: str, text: str) -> int | str:
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    if _SYMBOL.fullmatch(text):
        return text
    raise InvalidShape(f"--shape {name} has {text!r}, which is neither a size nor a name", name=name)

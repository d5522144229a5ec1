"""What the processes of `relaxc bench` call: an artifact, or its model in the framework that it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["artifact", "reference"]


def artifact(path: str, threads: int, values: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a call of the artifact. Raise what loading it does."""
    from relaxc.service.cli.session import open_session

    session = open_session(Path(path), threads)
    return lambda: session(values)


def reference(
    path: str,
    format: str,
    threads: int,
    shapes: Mapping[str, Any],
    passes: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Callable[[], Any]:
    """Return a call of the model at `path`, with the fastest that its framework has. `shapes` and `passes` are of the
    artifact's manifest.
    """
    from relaxc.service import frontend
    from relaxc.service.request import CompileOptions, ModelFormat
    from relaxc.service.rounding import Rounding

    called = frontend.reference(
        Path(path),
        ModelFormat(format),
        threads=threads,
        shapes=dict(CompileOptions.from_dict({"shapes": shapes}).shapes),
        fastest=True,
        rounding=Rounding.of(passes),
    )
    return lambda: called(values)

"""Errors and results as somebody elsewhere may see them: without the server's own paths."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from relaxc.service.errors import RelaxcError
from relaxc.service.process.task import Task

__all__ = ["unnamed", "without_paths"]


def without_paths(error: RelaxcError, task: Task) -> RelaxcError:
    """Return the same error, its texts as `unnamed` makes them."""
    return RelaxcError.from_dict(unnamed(error.to_dict(), task))


def unnamed(value: dict[str, Any], task: Task) -> dict[str, Any]:
    """Return the same JSON with `JOB`, `MODEL`, `RELAXC` and `PYTHON` where its texts have a folder of this machine."""
    stand_ins = {
        **{str(path): "MODEL" for path in task.confinement.reads},
        str(task.workdir): "JOB",
        str(Path(__file__).parents[2]): "RELAXC",
        str(Path(__file__).resolve().parents[2]): "RELAXC",  # a checkout, where the package has links to its folders
        sys.prefix: "PYTHON",
        sys.base_prefix: "PYTHON",
    }
    longest_first = sorted(stand_ins.items(), key=lambda item: -len(item[0]))
    return {key: _replaced(inner, longest_first) for key, inner in value.items()}


def _replaced(value: Any, names: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for path, name in names:
            value = value.replace(path, name)
        return value
    if isinstance(value, dict):
        return {key: _replaced(inner, names) for key, inner in value.items()}
    return [_replaced(inner, names) for inner in value] if isinstance(value, list | tuple) else value

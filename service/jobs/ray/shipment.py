"""What a task takes along to another machine, and what its text says of paths there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaxc.service.process.limits import Limits
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Flavour, Task

__all__ = ["MAX_NAME_BYTES", "Shipment", "is_plain_name", "moved", "of_task"]

MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Shipment:
    """A task without paths of this machine: `roots` are the files and folders that it may read, by number.

    In `task` a path is `{"root": number, "rest": "what/is/below"}`. Only what its text names goes along: by its sandbox
    it may read nothing else of us.
    """

    task: dict[str, Any]
    roots: tuple[Path, ...]

    def files(self) -> Iterator[tuple[int, str, Path]]:
        """Yield each file: the number of its root, its path below that (empty for a root that is a file), itself."""
        for number, root in enumerate(self.roots):
            if root.is_file():
                yield number, "", root
                continue
            for folder, _, names in os.walk(root):
                for name in sorted(names):
                    path = Path(folder, name)
                    if path.is_file():
                        yield number, str(path.relative_to(root)), path


def of_task(task: Task) -> Shipment:
    """Return what goes along with the task, without its own folder."""
    roots: list[Path] = []
    payload = _named(task.payload, task.confinement.reads, roots)
    text = {
        "entry": task.entry,
        "payload": payload,
        "flavour": task.flavour.value,
        "limits": task.limits.to_dict(),
        "repro": task.repro,
        "own_user": task.confinement.own_user,
        "gpu_in_children": task.confinement.gpu_in_children,
    }
    return Shipment(text, tuple(roots))


def moved(text: Mapping[str, Any], roots: Mapping[int, Path], workdir: Path, more: tuple[Path, ...] = ()) -> Task:
    """Return the task of a shipment that has arrived: its roots are here now; it may read `more` besides."""
    allowed = Confinement(
        reads=(*roots.values(), *more), own_user=text["own_user"], gpu_in_children=text["gpu_in_children"]
    )
    return Task(
        text["entry"],
        _placed(text["payload"], roots),
        workdir,
        Flavour(text["flavour"]),
        Limits(**text["limits"]),
        text["repro"],
        allowed,
    )


def is_plain_name(name: object) -> bool:
    """Return whether this names a file in a folder and nothing else."""
    if not isinstance(name, str) or name in ("", ".", "..") or "\0" in name or "/" in name:
        return False
    return len(name.encode(errors="surrogateescape")) <= MAX_NAME_BYTES


def _named(value: Any, reads: tuple[Path, ...], roots: list[Path]) -> Any:
    """The same JSON with roots for paths; each root that is named is added to `roots`."""
    if isinstance(value, dict):
        return {name: _named(inner, reads, roots) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_named(inner, reads, roots) for inner in value]
    if not isinstance(value, str) or not value.startswith("/"):
        return value
    path = Path(value)
    root = next((each for each in reads if path.is_relative_to(each) and each.exists()), None)
    if root is None:
        return value
    if root not in roots:
        roots.append(root)
    return {"root": roots.index(root), "rest": "" if path == root else str(path.relative_to(root))}


def _placed(value: Any, roots: Mapping[int, Path]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"root", "rest"}:
            root = roots[value["root"]]
            return str(root / value["rest"] if value["rest"] else root)
        return {name: _placed(inner, roots) for name, inner in value.items()}
    return [_placed(inner, roots) for inner in value] if isinstance(value, list) else value

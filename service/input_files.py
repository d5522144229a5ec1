"""The files that a compile reads: whether any was changed since, and the Triton kernels that a plugin names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from relaxc.service.errors import DigestMismatch
from relaxc.service.request import CompileOptions, Seen

__all__ = ["KERNEL_NAME", "check_unchanged", "is_special", "kernel_files", "named_files", "see"]

KERNEL_NAME = re.compile(r"([\w./-]+\.py):([A-Za-z_]\w*)")
"""`FILE.py:FUNCTION`, the file beside the plugin's or by a path from there."""


def is_special(path: Path) -> bool:
    """Return whether this is a pipe, a socket or a device: who reads one may wait, or read on, for ever."""
    return path.exists() and not path.is_file() and not path.is_dir()


def named_files(options: CompileOptions) -> list[Path]:
    """Return what the options name beside the model's own files: plugins, and samples."""
    given = options.calibration
    return [*map(Path, options.plugins), *([] if given is None or given.is_beside else [Path(given.samples)])]


def see(files: Iterable[Path]) -> Seen:
    """Return what `check_unchanged` needs of these files; call it before they are read."""
    return tuple((file, _facts(file)) for file in files)


def check_unchanged(seen: Seen) -> None:
    """Raise DigestMismatch where a file was written to, replaced, removed or made since it was seen."""
    changed = [file for file, facts in seen if _facts(file) != facts]
    if changed:
        raise DigestMismatch(
            f"{', '.join(file.name for file in changed)} changed while the model was compiled",
            remedy="Compile again, when nothing writes to it; nothing was kept.",
            files=[str(file) for file in changed],
        )


def _facts(file: Path) -> tuple[int, ...]:
    """What changes with the file's contents, or when another takes its place; nothing where there is none."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def kernel_files(plugin: Path) -> list[Path]:
    """Return the files of kernels that the text of a plugin names as literals, sorted; none of one that cannot be read.

    They are part of what an artifact depends on. A name that is put together at run time is not found here, and refused
    when the plugin is loaded.
    """
    if is_special(plugin):
        return []
    try:
        tree = ast.parse(plugin.read_bytes())
    except (OSError, SyntaxError, ValueError):  # who loads it says so, with the line
        return []
    literals = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = (KERNEL_NAME.fullmatch(value) for value in literals if isinstance(value, str))
    return sorted({(plugin.parent / name[1]).resolve() for name in named if name is not None})

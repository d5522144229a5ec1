"""The files of Triton kernels that a plugin names, and Triton's version: nothing of either is run for that."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

__all__ = ["KERNEL_NAME", "kernel_files", "triton_version"]

KERNEL_NAME = re.compile(r"([\w./-]+\.py):([A-Za-z_]\w*)")
"""`FILE.py:FUNCTION`, the file beside the plugin's or by a path from there."""


def kernel_files(plugin: Path) -> list[Path]:
    """Return the files of kernels that the text of a plugin names as literals, sorted; none of one that cannot be read.

    They are part of what an artifact depends on. A name that is put together at run time is not found here, and refused
    when the plugin is loaded.
    """
    try:
        tree = ast.parse(plugin.read_bytes())
    except (OSError, SyntaxError, ValueError):  # who loads it says so, with the line
        return []
    literals = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = (KERNEL_NAME.fullmatch(value) for value in literals if isinstance(value, str))
    return sorted({(plugin.parent / name[1]).resolve() for name in named if name is not None})


def triton_version() -> str | None:
    """Return the version of the Triton that is installed, or None."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None

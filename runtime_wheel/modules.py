"""Which modules of ours running an artifact needs: those that it imports, and what they import themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_ROOTS = ("relaxc.service.runtime.loading", "relaxc.service.runtime.inputs")
_REPLACED = frozenset({"relaxc.service.config"})
"""Of this there is a generated one, which needs no library."""


def closure() -> dict[str, Path]:
    """Every module that is packed, by its name; packages' `__init__.py` as well."""
    found: dict[str, Path] = {}
    pending = list(_ROOTS)
    while pending:
        module = pending.pop()
        path = _file(module)
        if module in found or module in _REPLACED or path is None:
            continue
        found[module] = path
        pending += [".".join(module.split(".")[:end]) for end in range(2, module.count(".") + 1)]
        pending += [name for name in imported(path) if name.startswith("relaxc.service")]
    return dict(sorted(found.items()))


def imported(path: Path) -> Iterator[str]:
    """What a file imports when it is imported; of `from a import b` both a and a.b."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names if _file(f"{node.module}.{alias.name}"))


def settings_used() -> set[str]:
    """The settings that packed modules read."""
    texts = (path.read_text(encoding="utf-8") for path in closure().values())
    return {name for text in texts for name in re.findall(r"\bsettings\(\)\.(\w+)", text)}


def _file(module: str) -> Path | None:
    path = ROOT / module.removeprefix("relaxc.").replace(".", "/")
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in candidates if file.is_file()), None)

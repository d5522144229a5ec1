"""The generated parts of docs/layout.md: the tree of rooms with their docstrings, and the name of every file."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOMS", "files", "layout_page", "tree"]

_ROOT = Path(__file__).parent.parent
_PAGE = _ROOT / "docs" / "layout.md"

# In the order of a request's way; a room that is not here stands at the end, by its name.
ROOMS = (
    "frontend",
    "passes",
    "lowering",
    "records",
    "tuning",
    "artifact",
    "runtime",
    "packaging",
    "process",
    "jobs",
    "api",
    "cli",
    "client",
)

# Folders without a docstring of their own.
_FOLDERS = {"service/api/page": "The page at `/`: plain JavaScript, one view or helper a file"}
_BESIDE = {
    "relaxc/  docs/  tests/  ": "The public names; these pages; tests. Beside them benchmarks/, tuning_logs/, docker/",
}
_OTHERS = ("service/packaging/native/src", "docker", "runtime_wheel", ".ci")
"""Folders that are no packages, all of whose files are named."""
_PHRASE_AT, _WIDTH = 34, 124


def tree() -> str:
    """Every package with the first sentence of its docstring; of `service` the single modules too."""
    lines = []
    for top in ("service", "schedules"):
        for folder in _packages(_ROOT / top):
            inside = len(folder.relative_to(_ROOT).parts) - 1
            lines.append(_line("  " * inside + f"{folder.name}/", _phrase(folder)))
            if inside == 0:
                lines += [_line(f"  {path.name}", _sentence(path)) for path in _modules(folder)]
    lines += [_line(name, phrase) for name, phrase in _BESIDE.items()]
    return "\n".join(lines)


def files() -> str:
    """The names of all modules, a paragraph a package; what is not Python or JavaScript has its suffix."""
    lines = []
    for top in ("relaxc", "service", "schedules", "benchmarks"):
        for folder in _packages(_ROOT / top):
            names = [path.stem for path in _modules(folder)] or [path.stem for path in sorted(folder.glob("*.js"))]
            names += sorted(path.name for path in folder.glob("*.cuh"))
            lines += _paragraph(folder, names)
    for name in _OTHERS:
        folder = _ROOT / name
        lines += _paragraph(folder, sorted(path.name for path in folder.iterdir() if path.is_file()))
    return "\n".join(lines)


def _paragraph(folder: Path, names: list[str]) -> list[str]:
    wrapped = textwrap.wrap("  ".join(names), _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return [f"{folder.relative_to(_ROOT).as_posix()}/", *wrapped] if names else []


def layout_page() -> str:
    """docs/layout.md with the parts between its marks written anew."""
    parts = {"tree": tree, "files": files}
    pattern = re.compile(r"(<!-- (tree|files): generated[^\n]*-->\n```\n).*?(```\n<!-- end -->)", re.DOTALL)
    text = _PAGE.read_text(encoding="utf-8")
    return pattern.sub(lambda found: f"{found[1]}{parts[found[2]]()}\n{found[3]}", text)


def _packages(folder: Path) -> Iterator[Path]:
    """`folder` and every package below it, in the order of `ROOMS`, then of their names."""
    yield folder
    inner = [path for path in folder.iterdir() if not path.is_symlink()]
    inner = [path for path in inner if (path / "__init__.py").exists() or _named(path) in _FOLDERS]
    in_service = ROOMS if folder.name == "service" else ()
    for path in sorted(inner, key=lambda path: (in_service.index(path.name) if path.name in in_service else 99, path)):
        yield from _packages(path)


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if not path.stem.startswith("__"))


def _phrase(folder: Path) -> str:
    return _FOLDERS.get(_named(folder)) or _sentence(folder / "__init__.py")


def _named(folder: Path) -> str:
    return folder.relative_to(_ROOT).as_posix()


def _sentence(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[^.])\.(?:\s|$)", text, maxsplit=1)[0]


def _line(name: str, phrase: str) -> str:
    return f"{name:<{_PHRASE_AT}}{phrase}"

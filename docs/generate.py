"""Writes docs/errors.md and docs/settings.md from the code: `python -m docs.generate` (part of `make fix`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from service import errors
from service.config import Settings

__all__ = ["PAGES", "drawn_tree", "errors_page", "settings_page"]

_HERE = Path(__file__).parent
_NODE = re.compile(r"^(?P<lines>[│ ]*[├└]── |)(?P<name>[A-Z]\w+)(?: {2,}(?:exit \d)? *(?P<meaning>.*))?$")


def drawn_tree() -> dict[str, tuple[str, str]]:
    """What the tree drawn in `service/errors.py` says: class name → (parent's name, meaning)."""
    found: dict[str, tuple[str, str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if node := _NODE.match(line):
            depth = len(node["lines"]) // 4
            path = [*path[:depth], node["name"]]
            found[node["name"]] = (path[-2] if depth else "RelaxcError", node["meaning"] or "")
    del found["RelaxcError"]
    return found


def errors_page() -> str:
    """docs/errors.md: a row for each error class, in the order of the drawn tree."""
    classes = {kind.__name__: kind for kind in errors.by_code().values()}
    rows = []
    for name, (parent, meaning) in drawn_tree().items():
        kind, family = classes[name], parent == "RelaxcError"
        shown = f"**`{kind.code}`**" if family else f"`{kind.code}`"
        rows.append((shown, f"`{name}`", kind.exit_code, kind.http_status, meaning, kind.remedy))
    return f"""# Errors

Generated from `service/errors.py` by `python -m docs.generate`; do not edit.

Every error that relaxc raises on purpose has a code. The command line prints
`relaxc: error [code]: message` and a `remedy:` line on stderr, and exits with the family's exit code; with `--json` it
also prints `{{"error": {{"code", "message", "remedy", "fields"}}}}` on stdout. The HTTP API answers with the same code
in an RFC 9457 `application/problem+json` body. The library raises the class, from `service.errors`. A family's own code
(in bold) is used where no class below it fits. A message may come with a more exact remedy than the one listed here.

{_table(("code", "class", "exit", "HTTP", "meaning", "remedy"), rows)}
## Other exit codes

{_table(("exit", "meaning"), _OTHER_EXITS)}"""


_OTHER_EXITS = (
    (0, "it worked"),
    (1, "a bug of ours: the line says `this is a bug`, and `--verbose` shows the trace"),
    (130, "interrupted by Ctrl-C; the compiling process was stopped too"),
    (141, "the reader of the output went away"),
    (143, "terminated by SIGTERM; the compiling process was stopped too"),
)


def settings_page() -> str:
    """docs/settings.md: a row for each setting, in the order of `service/config.py`."""
    rows = []
    for name, field in Settings.model_fields.items():
        extra: Any = field.json_schema_extra
        affects = "yes" if extra["affects_artifact"] else "no"
        rows.append((f"`RELAXC_{name.upper()}`", _default(name, field), extra["unit"], affects, field.description))
    return f"""# Settings

Generated from `service/config.py` by `python -m docs.generate`; do not edit.

Each is read from the environment. Where the command line has an option for the same thing, the option wins. A setting
that changes the artifact is part of the cache key.

{_table(("variable", "default", "unit", "changes the artifact", "meaning"), rows)}"""


def _default(name: str, field: Any) -> str:
    if name == "cache_dir":
        return "`relaxc` in the user's cache folder"
    value = field.default
    if isinstance(value, int) and value >= 1 << 30:
        return f"{value} ({value / (1 << 30):g} GiB)"
    return f"`{value}`" if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def _table(header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


PAGES = {_HERE / "errors.md": errors_page, _HERE / "settings.md": settings_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")

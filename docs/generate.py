"""Writes the generated pages of docs/ from the code: `python -m docs.generate` (part of `make fix`)."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docs.cli_page import cli_page
from docs.layout_page import layout_page
from docs.retention_page import retention_page
from relaxc.service import errors
from relaxc.service.config import Settings

__all__ = ["PAGES", "drawn_tree", "errors_page", "pipeline_page", "settings_page"]

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
        again = "yes" if kind.retryable else "no"
        facts = kind.exit_code, kind.http_status, kind.fault, again
        rows.append((shown, f"`{name}`", *facts, meaning, kind.remedy))
    return f"""# Errors

Generated from `service/errors.py` by `python -m docs.generate`; do not edit.

Every error that relaxc raises on purpose has a code. The command line prints
`relaxc: error [code]: message` and a `remedy:` line on stderr, and exits with the family's exit code; with `--json` it
also prints `{{"error": {{"code", "message", "remedy", "fault", "node", "retryable", "fields"}}}}` on stdout. The HTTP
API answers with the same code in an RFC 9457 `application/problem+json` body. The library raises the class, from
`relaxc.errors`. A family's own code (in bold) is used where no class below it fits. A message may come with a more
exact remedy than the one listed here. `fault` says who has to change something: the caller (`request`), the model's
author, the compiler's authors, or who runs the service; `retryable` that the same request may succeed later.

{_table(("code", "class", "exit", "HTTP", "fault", "retryable", "meaning", "remedy"), rows)}
## Other exit codes

{_table(("exit", "meaning"), _OTHER_EXITS)}"""


_OTHER_EXITS = (
    (0, "it worked"),
    (1, "a bug of ours: the line says `this is a bug`, and `--verbose` shows the trace"),
    (74, "what it prints cannot be written: the disk of its output is full"),
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
    if isinstance(value, int | float) and 1 << 30 <= value < math.inf:
        return f"{value:.0f} ({value / (1 << 30):g} GiB)"
    return f"`{value}`" if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def pipeline_page() -> str:
    """docs/pipeline.md: the phases with their passes, and the ordered schedule rules, of both kinds of target."""
    from relaxc.schedules import cpu, cuda

    phases = {tag: _phases(tag) for tag in ("x86-64-v4", "cuda-sm90")}
    ours = {type(each).__name__: each for found in phases.values() for phase in found for each in phase.passes}
    ours = {name: each for name, each in sorted(ours.items()) if type(each).__module__.startswith("relaxc.")}
    rules = [*_rule_rows("CPU", cpu.RULES), *_rule_rows("CUDA", cuda.RULES)]
    return f"""# Passes and schedule rules

Generated from `service/passes/pipeline.py` and `schedules/` by `python -m docs.generate`; do not edit.

## Phases on a CPU

The module is checked after each phase, and `--dump` writes it. A plugin's passes run at the end of the phase that they
name. Passes in italics are TVM's; `precision` is shown for `--precision fp16`, and empty for an fp32 model without it.

{_table(("phase", "from -O", "passes, in order"), map(_phase_row, phases["x86-64-v4"]))}
## Phases for CUDA

{_table(("phase", "from -O", "passes, in order"), map(_phase_row, phases["cuda-sm90"]))}
## Our passes

{_table(("pass", "what it does"), [(f"`{name}`", _module_line(each)) for name, each in ours.items()])}
## Schedule rules

The first rule that takes a PrimFunc schedules it; the last of each list takes all. The manifest names the rule that won
for every PrimFunc, its parameters, and why those before it declined.

{_table(("kind", "rule", "version", "what it takes"), rules)}"""


def _phases(tag: str) -> list[Any]:
    from relaxc.service.lowering.target import resolve, to_tvm
    from relaxc.service.passes.pipeline import Job, phases
    from relaxc.service.request import Precision

    return phases(to_tvm(resolve(tag)), Job(opt_level=3, precision=Precision.FP16, low_dtypes=frozenset({"float16"})))


def _phase_row(phase: Any) -> tuple[str, int, str]:
    names = [_pass_name(each) for each in phase.passes]
    return f"`{phase.name}`", phase.min_opt_level, ", ".join(names)


def _pass_name(each: Any) -> str:
    is_ours = type(each).__module__.startswith("relaxc.")
    return f"`{type(each).__name__}`" if is_ours else f"*{each.info.name}*"


def _module_line(each: Any) -> str:
    return (sys.modules[type(each).__module__].__doc__ or "").splitlines()[0]


def _rule_rows(kind: str, rules: Iterable[Any]) -> list[tuple[str, str, int, str]]:
    return [(kind, f"`{rule.name}`", rule.version, (type(rule).__doc__ or "").splitlines()[0]) for rule in rules]


def _table(header: tuple[str, ...], rows: Iterable[Iterable[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


PAGES = {
    _HERE / "errors.md": errors_page,
    _HERE / "settings.md": settings_page,
    _HERE / "pipeline.md": pipeline_page,
    _HERE / "layout.md": layout_page,
    _HERE / "cli.md": cli_page,
    _HERE / "retention.md": lambda: retention_page(_table),
}

if __name__ == "__main__":
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm would spend seconds on importing it
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")

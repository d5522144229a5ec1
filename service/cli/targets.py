"""`relaxc targets`: what can be compiled for, and whether it can run here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from service.cli.options import Json, Verbose
from service.cli.output import console, print_json, table

if TYPE_CHECKING:
    from service.request import TargetSpec

__all__ = ["targets"]


def targets(json: Json = False, verbose: Verbose = False) -> None:
    """List the named targets, with `auto` (this machine) first."""
    from service.machine import host_features

    rows = _rows()
    if json:
        print_json({"targets": rows})
        return
    shown = table("", "target", "is", "vector bits", "cores", "runs here", numbers=("vector bits", "cores"))
    for row in rows:
        cpu = row["host"] or row
        runs = "yes" if not row["missing"] else f"no: {row['missing'][0]}" + ", …" * (len(row["missing"]) > 1)
        shown.add_row(row["target"], row["arch"] or row["name"], str(cpu["vector_bits"]), str(cpu["cores"]), runs)
    console().print(shown, markup=False)
    print(f"this CPU has {' '.join(sorted(host_features()))}")


def _rows() -> list[dict[str, Any]]:
    from service.errors import InvalidTarget
    from service.lowering.target import resolve, tags

    found: list[tuple[str, TargetSpec]] = []
    for name in ("auto", "auto-gpu"):
        try:
            found.append((name, resolve(name)))
        except InvalidTarget:  # there is no GPU here, or no code generator for this CPU
            continue
    return [_row(name, spec) for name, spec in [*found, *((tag.name, tag) for tag in tags())]]


def _row(name: str, spec: TargetSpec) -> dict[str, Any]:
    from service.lowering.target import missing_features

    return {"target": name, **spec.to_dict(), "missing": missing_features(spec)}

"""`relaxc targets`: what can be compiled for, and whether it can run here."""

from __future__ import annotations

from service.cli.options import Json, Verbose
from service.cli.output import console, print_json, table

__all__ = ["targets"]


def targets(json: Json = False, verbose: Verbose = False) -> None:
    """List the named targets, with `auto` (this machine) first."""
    from service.lowering.target import host_features, listed, missing_features

    rows = [{"target": name, **spec.to_dict(), "missing": missing_features(spec)} for name, spec in listed()]
    if json:
        print_json({"targets": rows})
        return
    shown = table("", "target", "is", "vector bits", "cores", "runs here", numbers=("vector bits", "cores"))
    for row in rows:
        cpu = row["host"] or row
        runs = "yes" if not row["missing"] else f"no: {row['missing'][0]}" + ", …" * (len(row["missing"]) > 1)
        shown.add_row(row["target"], row["arch"] or row["name"], str(cpu["vector_bits"]), str(cpu["cores"]), runs)
    console().print(shown)
    print(f"this CPU has {' '.join(sorted(host_features()))}")

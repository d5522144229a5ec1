"""`relaxc inspect`: what a model or an artifact says of itself, without compiling or loading its code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli import report
from relaxc.service.cli.options import Json, Verbose
from relaxc.service.cli.output import console, facts, print_json, size, table
from relaxc.service.errors import ModelNotFound

if TYPE_CHECKING:
    from relaxc.service.artifact.manifest import Manifest

__all__ = ["inspect"]


def inspect(
    file: Annotated[
        Path, typer.Argument(metavar="MODEL|OUT.so", help="A model, or a compiled artifact.", show_default=False)
    ],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show a model's signature and operators, supported or not; or an artifact's manifest.

    A model is read in a child process: a file that crashes the importer is reported as an error.
    """
    if _is_elf(file):
        _artifact(file, json)
    else:
        _model(file, json)


def _is_elf(path: Path) -> bool:
    try:
        if path.exists() and not path.is_file():  # a pipe is waited for
            raise ModelNotFound(f"cannot read {path}: it is no regular file", path=str(path))
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}", path=str(path)) from error


def _model(path: Path, as_json: bool) -> None:
    from relaxc.service import frontend
    from relaxc.service.jobs.local.calls import inspect_local

    info = inspect_local(path, frontend.identify(path))
    if as_json:
        print_json({"kind": "model", "path": str(path), "supported": not info["unsupported"], **info})
        return
    facts([("format", info["format"]), *((name, str(value)) for name, value in info["details"].items())])
    out = console()
    out.print(report.signature("", info["signature"]))
    out.print(_operators(info))
    if info["unsupported"]:
        number = len(info["unsupported"])
        which = "1 operator is" if number == 1 else f"{number} operators are"
        print(f"{which} not supported: this model does not compile")
    else:
        print("every operator is supported")


def _operators(info: dict[str, Any]) -> Any:
    shown = table("", "operator", "nodes", "supported", numbers=("nodes",))
    for name, number in sorted(info["op_counts"].items(), key=lambda row: (-row[1], row[0])):
        shown.add_row(name, str(number), _supported(info["unsupported"].get(name)))
    for name in sorted(set(info["unsupported"]) - set(info["op_counts"])):
        shown.add_row(name, str(info["unsupported"][name]["count"]), _supported(info["unsupported"][name]))
    return shown


def _supported(unsupported: dict[str, Any] | None) -> str:
    if unsupported is None:
        return "yes"
    more = unsupported["count"] - len(unsupported["nodes"])
    nodes = ", ".join(unsupported["nodes"]) + (f", and {more} more" if more > 0 else "")
    return f"no ({unsupported['reason']}): {nodes}" if unsupported["reason"] else f"no: {nodes}"


def _here(manifest: Manifest) -> tuple[list[str], str]:
    """What this machine lacks to run it; and where it lacks nothing, by which of its parts."""
    from relaxc.service import machine

    targets = manifest.targets
    best = machine.best_part(targets) if len(targets) > 1 else None
    missing = min((machine.missing_features(target) for target in targets), key=len)
    return missing, "yes" if best is None else f"yes, as {targets[best].name}"


def _artifact(path: Path, as_json: bool) -> None:
    from relaxc.service.artifact.manifest import Manifest

    manifest = Manifest.read(path)
    missing, runs = _here(manifest)
    if as_json:
        print_json({"kind": "artifact", "path": str(path), "runs_here": not missing, "manifest": manifest.to_dict()})
        return
    weights = manifest.weights
    facts(
        [
            ("size", size(path.stat().st_size)),
            ("target", f"{manifest.target_names} ({manifest.target.kind})"),
            ("runs here", f"no, it needs {', '.join(missing)}" if missing else runs),
            ("weights", f"{len(weights.tensors)} tensors, {size(weights.size_bytes)} in {weights.file or 'this file'}"),
            ("fused", report.fused(manifest)),
            *(("state", line) for line in report.state(manifest)),
            ("tuned", report.tuned(manifest)),
            *(("rounded", line) for line in report.rounded(manifest)),
            *(("int8", line) for line in report.calibrated(manifest)),
            *(("precision", line) for line in report.precisions(manifest)),
            *(("left out", line) for line in report.left_out(manifest)),
            ("model", manifest.digests.get("model", "-")),
            ("versions", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
            ("rebuild", manifest.command),
            *(("verification", line) for line in report.verifications(manifest)),
        ]
    )
    out = console()
    out.print(report.signature("", manifest.signature.to_dict()))
    for part in manifest.parts:
        which = f" for {part.target.name}" if manifest.others else ""
        out.print(report.prim_funcs(f"{len(part.schedule)} PrimFuncs{which}", part.schedule))

"""Ours: the model compiled with the records that come with relaxc, loaded without torch in the process."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module, metadata
from pathlib import Path

from benchmarks.peers.cases import Case
from benchmarks.peers.files import code_digest, onnx_path, read_inputs
from benchmarks.peers.runtimes import Loaded, Prepared

COUNTS = False


def version() -> str:
    """See Runtime."""
    try:
        return metadata.version("relaxc")
    except metadata.PackageNotFoundError:
        return "not installed"


def supports(case: Case) -> bool:
    """See Runtime."""
    return True


def prepare(case: Case, folder: Path, threads: int) -> Prepared:
    """See Runtime. What the store has is not compiled again; the time is that of the compile that made it."""
    return prepare_with(case, folder, "relaxc.json", default_records=True, precision=case.precision)


def prepare_with(
    case: Case,
    folder: Path,
    note: str,
    *,
    default_records: bool,
    model: Path | None = None,
    precision: str | None = None,
) -> Prepared:
    """Compiles with or without the records that come with relaxc; `note` tells `load_from` where the artifact is.

    `model` is the case's own unless another is given.
    """
    import relaxc
    from relaxc.service.request import Precision

    options = relaxc.CompileOptions(
        default_records=default_records, precision=None if precision is None else Precision(precision)
    )
    made = relaxc.compile(model or onnx_path(case, folder), target=case.target or "auto", options=options)
    (folder / note).write_text(json.dumps(str(made.path)))
    stages, rows = made.build_record["stages"], made.manifest.schedule
    facts = {
        "target": made.manifest.target.name,
        "stages": stages,
        "verified": made.manifest.verified,
        "from_records": sum(row["source"] == "record" for row in rows),
        "kernels": len(rows),
        "code": code_digest(made.path),
    }
    return Prepared(sum(file.stat().st_size for file in made.files), round(sum(stages.values()), 2), facts)


def load(case: Case, folder: Path, threads: int) -> Loaded:
    """See Runtime."""
    return load_from(folder / "relaxc.json", folder, threads)


def load_from(note: Path, folder: Path, threads: int, package: str = "relaxc.service") -> Loaded:
    """An artifact needs neither torch, which tvm imports where it can, nor tvm's compiler (110 MiB)."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    os.environ["TVM_USE_RUNTIME_LIB"] = "1"
    session = import_module(f"{package}.runtime").load(json.loads(note.read_text()), threads=threads)
    taken = {spec.name for spec in session.signature.inputs}
    inputs = {name: array for name, array in read_inputs(folder).items() if name in taken}
    return Loaded(lambda: session(inputs), lambda result: list(result.values()))

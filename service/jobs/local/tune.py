"""Tuning for somebody in this process: the command line, or Python code. In a child, as a server's tune job is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relaxc.service.compiler import places_read, prepare
from relaxc.service.config import settings
from relaxc.service.errors import CompileFailed, StoreUnwritable
from relaxc.service.jobs.local.calls import local_backend
from relaxc.service.process.limits import Limits
from relaxc.service.process.plain import MAX_READ_BYTES, open_left
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.task import Emit, Flavour, Task
from relaxc.service.request import CompileOptions, CompileRequest
from relaxc.service.tuning.options import TuneOptions

__all__ = ["TuneResult", "list_tasks", "tune", "tune_local"]

ENTRY = "relaxc.service.jobs.entries:tune_model"


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A finished run: its `report` (docs/tuning.md), and `files`: the records of its tasks, the report, the curve."""

    report: Mapping[str, Any]
    files: tuple[Path, ...]


def tune(
    model: Path | str,
    *,
    records: Path | str,
    target: str = "auto",
    options: CompileOptions | None = None,
    tuning: TuneOptions | None = None,
    on_event: Emit | None = None,
) -> TuneResult:
    """Search for better parameters of the model's kernels; what wins is added to the folder `records` at once.

    Compiles of the same model take them with `CompileOptions(records=(records,))`. `on_event` gets the events of
    docs/tuning.md, in this thread. Raise a RelaxcError.
    """
    tuning = replace(tuning or TuneOptions(), into=str(records))
    return tune_local(prepare(model, target=target, options=options), tuning, on_event)


def tune_local(request: CompileRequest, options: TuneOptions, on_event: Emit | None = None) -> TuneResult:
    """Run in a child whose every process ends with it, also on Ctrl-C or an exception of `on_event`.

    `options.into` is made if it is not there; the report and the curve stay beside the run's journal in it.
    Raise a RelaxcError.
    """
    into = Path(options.into).absolute()
    _make(into)
    backend = local_backend()
    workdir = backend.workspace.folder("tune")
    try:
        result = _run(request, replace(options, into=str(into), list_only=False), workdir, on_event)
        with open_left(workdir, "report.json") as file:
            report = json.loads(file.read(MAX_READ_BYTES))
        journal = into / ".journal" / _plain(report["run"])
        return TuneResult(report, tuple(_keep(workdir, name, journal) for name in result["files"]))
    finally:
        backend.workspace.remove(workdir)


def _plain(run: Any) -> str:
    """The name of a run, which its child has told: no way to another folder."""
    if not isinstance(run, str) or run in ("", "..") or Path(run).name != run:
        raise CompileFailed(f"the tuning tells no run, but {str(run)[:80]!r}")
    return run


def _keep(workdir: Path, name: str, folder: Path) -> Path:
    path = folder / str(name)
    with open_left(workdir, name) as file, path.open("wb") as copy:
        shutil.copyfileobj(file, copy)
    return path


def list_tasks(request: CompileRequest, options: TuneOptions, on_event: Emit | None = None) -> dict[str, Any]:
    """Return `tasks` and `skipped`, as `tuner.run` lists them; nothing is measured but the machine's peak, once."""
    backend = local_backend()
    workdir = backend.workspace.folder("tune")
    try:
        return _run(request, replace(options, list_only=True), workdir, on_event)
    finally:
        backend.workspace.remove(workdir)


def _run(request: CompileRequest, options: TuneOptions, workdir: Path, on_event: Emit | None) -> dict[str, Any]:
    records = tuple(str(Path(place).absolute()) for place in options.records)
    peak = settings().cache_dir / "peak"
    _make(peak)
    into = (Path(options.into),) if options.into else ()
    is_gpu = request.target.kind == "cuda"
    allowed = Confinement(
        reads=(*folders_of(request.model.path), *places_read(request), *map(Path, records)),
        writes=(*into, peak),
        network=options.tracker is not None,
        own_user=is_gpu,
        gpu_in_children=is_gpu,
    )
    task = Task(
        ENTRY,
        {"request": request.to_dict(), **replace(options, records=records).to_dict()},
        workdir,
        Flavour(request.model.format),
        limits=Limits.of_settings().for_tuning(options.time_s),
        confinement=allowed,
    )
    return local_backend().pool.run(task, on_event or (lambda event: None))


def _make(folder: Path) -> None:
    """The child cannot open what does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnwritable(
            f"cannot make {folder}: {error.strerror}",
            remedy="Give --records a folder that can be written.",
            path=str(folder),
        ) from error

"""What each kind of job does: its child, what that may read, and what is kept of what it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relaxc.service.artifact.key import key_for
from relaxc.service.compiler import places_read
from relaxc.service.config import settings
from relaxc.service.errors import RelaxcError
from relaxc.service.jobs.blobs.mirrored import Blobs
from relaxc.service.jobs.database import clock
from relaxc.service.jobs.database.engine import is_no_answer
from relaxc.service.jobs.database.outcomes import Outcome
from relaxc.service.jobs.database.rows import JobKind, JobRow, Owner, RecordsRow
from relaxc.service.jobs.job_error import job_error
from relaxc.service.jobs.objects.artifacts import Artifacts
from relaxc.service.jobs.objects.models import Models
from relaxc.service.jobs.objects.recordsets import RecordSets
from relaxc.service.jobs.once import Ask, CompileOnce
from relaxc.service.jobs.queue.files import TUNE_FILES, blob_of
from relaxc.service.jobs.queue.running import Running
from relaxc.service.jobs.queue.trials import kept_records
from relaxc.service.jobs.workers.devices import Device, ports_of_settings, tracker_of_settings
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.lowering.target import resolve
from relaxc.service.process.bounds import checked
from relaxc.service.process.limits import Limits, tuning_time_s
from relaxc.service.process.plain import MAX_READ_BYTES, open_left
from relaxc.service.process.runner import Runner, RunnerLost
from relaxc.service.process.sandbox.confinement import Confinement, folders_of
from relaxc.service.process.task import Flavour, Task, finite
from relaxc.service.process.unnamed import unnamed
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import CompileOptions, CompileRequest, ModelRef, TargetSpec
from relaxc.service.tuning.told import KNOWN, lines_of

__all__ = ["ENTRIES", "Kinds", "compile_request"]

_LOG = logging.getLogger("relaxc.jobs")

ENTRIES = {
    JobKind.TUNE: "relaxc.service.jobs.entries:tune_model",
    JobKind.BENCH: "relaxc.service.jobs.entries:bench_artifact",
    JobKind.VERIFY: "relaxc.service.jobs.entries:verify_artifact",
}


@dataclass(frozen=True, slots=True)
class Kinds:
    """Does a job, and returns what came of it. Raises a RelaxcError, which is how the job ends."""

    compile_once: CompileOnce
    pool: Runner
    workspace: Workspace
    limits: Limits
    blobs: Blobs
    models: Models
    artifacts: Artifacts
    records: RecordSets
    entries: Mapping[JobKind, str]
    machine: Machine | None

    def __call__(self, running: Running) -> Outcome:
        """Runs it to its end, in this thread."""
        does: dict[JobKind, Callable[[Running], Outcome]] = {
            JobKind.COMPILE: self._compile,
            JobKind.TUNE: self._tune,
            JobKind.BENCH: self._bench,
            JobKind.VERIFY: self._verify,
        }
        return does[running.job.kind](running)

    def _compile(self, running: Running) -> Outcome:
        job = running.job
        with self._model(job) as model:
            request = self._request(running, model)
            allowed = Confinement(reads=(*folders_of(model.path), *places_read(request)))
            waited_s = round((job.started or clock.now()) - job.created, 3)
            key = key_for(request, None if self.machine is None else self.machine.lacks(request.target))
            entry = self.compile_once(
                Ask(request, key, job.name, allowed, waited_s),
                running.take,
                running.cancellation,
                lookup=self.artifacts.lookup,
                around=running.at,
            )
        self.artifacts.mirror(entry)
        return Outcome.of(entry)

    def _tune(self, running: Running) -> Outcome:
        job = running.job
        with self._model(job) as model:
            request = self._request(running, model)
            reads = (*folders_of(model.path), *places_read(request), _peak_folder())
            device = None if self.machine is None else self.machine.device_for(request.target)
            payload = {
                "request": request.to_dict(),
                **_tune_options(job, device),
                "records": [*request.options.records],
            }
            limits = self.limits.for_tuning(job.extras.get("time_s"))
            files = {KNOWN: lines_of(running.trials.known())}
            ports = () if device is None else ports_of_settings()
            allowed = Confinement(reads, gpu_in_children=request.target.kind == "cuda", ports=ports)
            try:
                return self._run(running, payload, Flavour(model.format), allowed, limits, self._tuned, files)
            except Exception as error:
                if running.give_back or running.lost or is_no_answer(error) or isinstance(error, RunnerLost):
                    raise
                return Outcome(records=self._won(running), error=job_error(error, job.id, reason=running.reason))

    def _request(self, running: Running, model: ModelRef) -> CompileRequest:
        """The compile that the job asks for; `auto` that nobody has resolved before means this machine."""
        job = running.job
        if job.extras.get("late"):
            asked = str(job.extras["target"])
            target = resolve(asked) if self.machine is None else self.machine.means(asked)
            running.events.note(target=target.to_dict())
        else:
            target = TargetSpec.from_dict(job.target)
        return compile_request(job, target, model, self.records)

    def _won(self, running: Running) -> RecordsRow | None:
        """What a tuning that is to end has won; where that cannot be kept now, `settle_ended` does it later."""
        try:
            running.flush()
            return kept_records(self.records, running.job, running.trials.known())
        except RelaxcError as error:
            _LOG.warning("the records of job %s: %s", running.job.id, error)
            return None

    def _tuned(self, job: JobRow, workdir: Path, result: dict[str, Any]) -> Outcome:
        files = [str(name) for name in result.get("files", ())]
        for name in TUNE_FILES:
            if name in files:
                self._keep(job, workdir, name)
        made = None
        if "records.jsonl" in files and (text := _read(workdir, "records.jsonl")).strip():
            owner = Owner(job.owner, frozenset())
            made = self.records.keep(owner, text, name=f"{job.name} ({job.id})", job=job.id)
        digest = None if made is None else made.digest
        return Outcome(records=made, result=checked(finite({**result.get("summary", {}), "records": digest})))

    def _bench(self, running: Running) -> Outcome:
        job = running.job
        with self.artifacts.open_accepted(job.extras["artifact"]) as opened:
            payload = {"artifact": str(opened.path), "seconds": job.extras.get("time_s"), "seed": job.options["seed"]}
            allowed = Confinement((*folders_of(*opened.entry.paths), _peak_folder()))
            return self._run(running, payload, Flavour.ONNX, allowed, self.limits, _result)

    def _verify(self, running: Running) -> Outcome:
        job = running.job
        with self.artifacts.open_accepted(job.extras["artifact"]) as opened, self._model(job) as model:
            reference = {"format": model.format.value, "digest": model.digest, "size_bytes": model.size_bytes}
            aliases = self.models.aliases(None, model.digest)  # an artifact says by which it was made
            payload = {
                "artifact": str(opened.path),
                "model": {**reference, "path": str(model.path)},
                "aliases": list(aliases),
            }
            allowed = Confinement(reads=(*folders_of(*opened.entry.paths), *folders_of(model.path)))
            return self._run(running, payload, Flavour(model.format), allowed, self.limits, _result)

    def _run(
        self,
        running: Running,
        payload: dict[str, Any],
        flavour: Flavour,
        allowed: Confinement,
        limits: Limits,
        keep: Callable[[JobRow, Path, dict[str, Any]], Outcome],
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> Outcome:
        """Runs the child, which finds `files` in its folder."""
        workdir = self.workspace.folder("job")
        try:
            for name, text in files.items():
                (workdir / name).write_text(text)
            task = Task(
                self.entries[running.job.kind],
                payload,
                workdir,
                flavour,
                limits,
                confinement=allowed,
                tunes=running.tunes,
            )
            with running.at(workdir):
                result = self.pool.run(task, running.take, cancellation=running.cancellation)
                return keep(running.job, workdir, unnamed(result, task))
        finally:
            self.workspace.remove(workdir)

    def _model(self, job: JobRow) -> AbstractContextManager[ModelRef]:
        assert job.model is not None
        return self.models.open(job.model)

    def _keep(self, job: JobRow, workdir: Path, name: str) -> None:
        self.blobs.put_bytes(blob_of(job.claim, name), _read(workdir, name))


def compile_request(job: JobRow, target: TargetSpec, model: ModelRef, records: RecordSets) -> CompileRequest:
    """Return the compile that a job's row speaks of, with its records where they are on this host."""
    options = CompileOptions.from_dict(job.options)
    given = job.extras.get("records")
    if given is not None:
        options = replace(options, records=(str(records.path(given)),))
    return CompileRequest(model, target, options)


def _tune_options(job: JobRow, device: Device | None) -> dict[str, Any]:
    """What of `relaxc.service.tuning.options.TuneOptions` a request may say, and where it is measured.

    Its trials outlive the job's folder.
    """
    where = {} if device is None else {"rpc_tracker": tracker_of_settings(), "rpc_key": device.key}
    asked = {} if job.extras.get("trials") is None else {"trials": job.extras["trials"]}
    time_s = tuning_time_s(job.extras.get("time_s"))
    return {**asked, **where, "time_s": time_s, "seed": job.options["seed"], "durable": True}


def _peak_folder() -> Path:
    """Where a child finds this machine's peak, if the command line has measured it; or else it measures for itself.

    Not to be written: what one owner's job left there, all others' would believe.
    """
    return settings().cache_dir / "peak"


def _result(job: JobRow, workdir: Path, result: dict[str, Any]) -> Outcome:
    return Outcome(result=checked(finite(result.get("report"))))


def _read(workdir: Path, name: str) -> bytes:
    """A file that a child left, of an absurdly large one the beginning."""
    with open_left(workdir, name) as file:
        return file.read(MAX_READ_BYTES)

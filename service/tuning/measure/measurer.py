"""The face of measurement: builds candidates, runs them elsewhere, and gives every point its outcome."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, ServerUnreachable
from relaxc.service.process.workspace import Workspace
from relaxc.service.request import TargetSpec
from relaxc.service.tuning.measure.batch import Batch, Policy, outcome_of, run_alone
from relaxc.service.tuning.measure.disk import check_room, writing
from relaxc.service.tuning.measure.far_builders import FarBuilders, Line
from relaxc.service.tuning.measure.libraries import Libraries
from relaxc.service.tuning.measure.listener import Listener
from relaxc.service.tuning.measure.messages import Build, Built, Compare, Heard, Listen, Ran, Reference, Run, Subject
from relaxc.service.tuning.measure.outcome import GPU_LIMITS, MeasureLimits, Noise, Outcome, RpcOptions
from relaxc.service.tuning.measure.placement import place
from relaxc.service.tuning.measure.pool import Lost, Pool, Seats, collect
from relaxc.service.tuning.measure.zygote import TuneZygote
from relaxc.service.tuning.task import Task

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["Measurer"]

_CUDA = "relaxc.service.tuning.measure.cuda_device"
_LISTEN_S = 30.0
_COMPARE_ATTEMPTS = 2
_REMOTE_ATTEMPTS = 3
"""Of a run whose server went away: two may have gone for reasons of their own."""


class Measurer:
    """Owns its processes and files; all of them go when it is closed, and when this process ends in whatever way.

    Used by one thread at a time. A point's library is built by a rule that `schedules` has for the target, or one of
    the RULES of the modules that `rules` names.
    """

    def __init__(
        self,
        spec: TargetSpec,
        *,
        threads: int,
        builders: int,
        limits: MeasureLimits | None = None,
        rpc: RpcOptions | None = None,
        rules: Sequence[str] = (),
        folder: Path | None = None,
        device: str = "",
        far: tuple[Line, int] | None = None,
    ) -> None:
        """`threads` is what a kernel runs with; with `rpc`, on servers that are registered there.

        Files are below `folder`, by default one of the cache folder. Kernels for a CUDA target run on this machine's
        GPU, one core beside it; `device` is the module that opens it, or a stand-in. With `far` nothing is built here,
        but over that line as many points at a time as the number says, which disturbs no measurement.

        Raise InvalidOption where it or `builders` is under 1, or more threads are timed here than there are cores,
        StoreUnwritable where no file can be written, and ServerUnreachable where there is no such server.
        """
        _check_counts(threads, builders, local=rpc is None)
        device = device or (_CUDA if spec.kind == "cuda" else "")
        self._limits = limits or (GPU_LIMITS if device else MeasureLimits())
        self._rpc = rpc
        root = folder or settings().cache_dir / "tuning"
        with writing(root):
            self._workspace = Workspace(root)
            try:
                self._folder = self._workspace.folder("measure")
            except OSError:
                self._workspace.close()
                raise
        self._zygote = TuneZygote(self._folder)
        self._placement = place(threads)
        memory = {"memory_bytes": self._limits.memory_bytes}
        building = {"cpus": sorted(self._placement.building), "target": spec.to_dict(), "rules": list(rules), **memory}
        timed = {"cpus": sorted(self._placement.timed), "threads": threads, "limits": asdict(self._limits), **memory}
        self._builders: Seats = Pool(self._zygote, "builder", builders, building)
        if device:
            lock = settings().cache_dir / "peak" / "gpu-0.lock"  # in a folder that a tuning job may write
            self._runners = Pool(self._zygote, "gpu", 1, {**timed, "device": device, "lock": str(lock)})
        else:
            self._runners = Pool(self._zygote, "runner", 1, timed)
        self._policy = Policy(overlap=self._placement.overlap or far is not None)
        if far is not None:
            self._builders = FarBuilders(*far, building)
        if rpc is not None:
            self._use_servers(rpc, {**timed, "cpus": building["cpus"], "rpc": asdict(rpc)})
        self._listener = Listener(self._hear, self._limits.quiet_wait_s)
        self._subjects: dict[str, Subject | Outcome] = {}
        self._best: dict[str, float] = {}
        self._libraries = Libraries(self._folder)
        self._zygote.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process and remove every file. May be called twice."""
        self._zygote.close()
        self._workspace.close()

    @property
    def noise(self) -> Noise:
        """What the reference kernel said last."""
        return self._listener.noise

    def measure(
        self, task: Task, points: Sequence[Parameters], ended: Callable[[Outcome], None] = lambda outcome: None
    ) -> list[Outcome]:
        """Measure every point; return the outcomes in order. One that kills or spoils its worker costs itself alone.

        `ended` hears of each as soon as it is known, in the order of their ends, before the noise after the batch is.
        """
        subject = self._prepare(task)
        if isinstance(subject, Outcome):
            failed = [replace(subject, point=point) for point in points]
            for outcome in failed:
                ended(outcome)
            return failed
        return self._judged(task, self._measured(task, subject, points, ended))

    def build_ahead(self, wanted: Sequence[tuple[Task, Parameters]]) -> None:
        """Build points of several tasks, as many at a time as there are builders; what measures them finds them built.

        What fails is built again when it is its turn, and fails there.
        """
        waiting = deque(self._build(task, point, self._libraries.reserve(task, point)) for task, point in wanted)
        try:
            while waiting or self._builders.busy:
                while waiting and self._builders.free:
                    self._builders.submit(None, waiting.popleft(), self._limits.build_s)
                collect(self._builders)
        finally:
            self._builders.drop_busy()

    def compare(self, task: Task, points: Sequence[Parameters], rounds: int) -> list[Outcome]:
        """Time the points and the task's default in turns, once a round each; return the outcomes in order, its last.

        So what slows the machine down slows all of them. A point that does not survive alone is left out. Raises
        InvalidOption where `rounds` is under 1.
        """
        if rounds < 1:
            raise InvalidOption(f"a comparison takes 1 round at least, not {rounds}", option="rounds")
        everything = [*points, task.default]
        subject = self._prepare(task)
        if isinstance(subject, Outcome):
            return [replace(subject, point=point) for point in everything]
        return self._judged(task, self._compared(task, subject, everything, rounds))

    def _use_servers(self, rpc: RpcOptions, config: dict[str, Any]) -> None:
        """A runner for each server that the tracker has now; building and measuring then disturb each other nowhere."""
        found = run_alone(Pool(self._zygote, "remote", 1, config), Listen(), _LISTEN_S)
        if not isinstance(found, int) or not found:
            self.close()
            why = "it has no server" if found == 0 else getattr(found, "detail", found)
            raise ServerUnreachable(f"the RPC tracker {rpc.host}:{rpc.port}, key {rpc.key}: {why}")
        self._runners = Pool(self._zygote, "remote", found, config)
        self._policy = Policy(overlap=True, lost_attempts=_REMOTE_ATTEMPTS, wrong_attempts=1)

    def _prepare(self, task: Task) -> Subject | Outcome:
        """The subject, once the untuned kernel has said what is right; or why it could not."""
        key = f"{task.workload} {json.dumps(dict(task.sizes), sort_keys=True)}"
        if key not in self._subjects:
            expected = self._folder / f"expected{len(self._subjects)}.npz"
            weights = (task.weight_operands, task.weight_bytes)
            subject = Subject(key, task.func_json, dict(task.sizes), str(expected), *weights)
            self._subjects[key] = self._untuned(task, subject) or subject
        return self._subjects[key]

    def _untuned(self, task: Task, subject: Subject) -> Outcome | None:
        """Builds and runs the default, so that `expected` is there; the outcome if it fails twice."""
        failed: Outcome | None = None
        for _ in range(2):
            build = self._build(task, task.default)
            was_there = Path(build.out).exists()
            built: Built | Lost = Built("built")
            if not was_there:
                built = run_alone(self._builders, build, self._limits.build_s)
            if isinstance(built, Lost):
                failed = outcome_of(task.default, built, "the untuned kernel's builder")
            elif built.kind != "built":
                check_room(self._folder)
                return Outcome(task.default, built.kind, detail=f"the untuned kernel: {built.detail}")
            else:
                ran = run_alone(self._runners, Reference(subject, build.out), self._run_limit_s)
                if not was_there:
                    Path(build.out).unlink(missing_ok=True)
                failed = outcome_of(task.default, ran, "the untuned kernel")
                if failed.kind == "measured":
                    return None
            check_room(self._folder)
        return failed

    def _build(self, task: Task, point: Parameters, out: str = "") -> Build:
        out = out or self._libraries.place(task, point)
        return Build(task.func_json, task.how(dict(point)), out, task.group_json, dict(task.operator))

    @property
    def _run_limit_s(self) -> float:
        return self._limits.run_s if self._rpc is None else self._rpc.session_s + self._limits.run_s

    def _measured(
        self,
        task: Task,
        subject: Subject,
        points: Sequence[Parameters],
        ended: Callable[[Outcome], None] = lambda outcome: None,
    ) -> list[Outcome]:
        """The outcome of every point by itself; the libraries of those that were measured are kept."""
        hopeless_s = self._limits.hopeless * self._best.get(task.workload, math.inf)

        def end(outcome: Outcome, library: str) -> None:
            self._libraries.keep(task, outcome, library)
            ended(outcome)

        batch = Batch(
            self._builders,
            self._runners,
            self._limits,
            self._run_limit_s,
            self._policy,
            run_of=lambda library: Run(subject, library, hopeless_s),
            before_runs=self._listener.wait_until_quiet,
            check_room=lambda: check_room(self._folder),
            ended=end,
        )
        return batch.go(points, [self._build(task, point) for point in points])

    def _compared(self, task: Task, subject: Subject, points: Sequence[Parameters], rounds: int) -> list[Outcome]:
        """Each alone first, if it was not yet, so that what crashes is known; then those that are right in turns."""
        self._listener.wait_until_quiet()
        new = [point for point in points if self._libraries.find(task, point) is None]
        failed = [outcome for outcome in self._measured(task, subject, new) if outcome.kind != "measured"]
        kept = [self._libraries.find(task, point) for point in points]
        libraries = tuple(dict.fromkeys(one[1] for one in kept if one is not None))
        answers = self._in_turns(Compare(subject, libraries, rounds)) if libraries else []
        compared = dict(zip(libraries, answers, strict=True))
        outcomes: list[Outcome] = []
        for point, one in zip(points, kept, strict=True):
            if one is None:
                outcomes.append(next(outcome for outcome in failed if outcome.point == point))
            else:
                outcomes.append(outcome_of(point, compared[one[1]], "the runner"))
        return outcomes

    def _in_turns(self, job: Compare) -> Sequence[Ran | Lost]:
        """The answers to a comparison; of a fresh runner, or of another server, where one was lost on the way.

        Where all are, each library has that as its answer: times that were not taken in turns say nothing here.
        """
        for _ in range(max(_COMPARE_ATTEMPTS, self._policy.lost_attempts)):
            answers: list[Ran] | Lost = run_alone(self._runners, job, self._run_limit_s * (1 + len(job.libraries)))
            if isinstance(answers, list) and not all(one.kind == "unreachable" for one in answers):
                return answers
        return answers if isinstance(answers, list) else [answers] * len(job.libraries)

    def _judged(self, task: Task, found: list[Outcome]) -> list[Outcome]:
        """The outcomes, marked where the machine was loud before or after; the best time is kept."""
        loud = self._listener.noise.loud
        loud = self._listener.listen() or loud
        times = [outcome.seconds for outcome in found if outcome.seconds is not None]
        self._best[task.workload] = min([self._best.get(task.workload, math.inf), *times])
        return [replace(outcome, loud=loud) if outcome.kind == "measured" else outcome for outcome in found]

    def _hear(self) -> Heard | None:
        """The reference kernel's time; None on remote devices, and where the runner did not survive it."""
        if self._rpc is not None:
            return None
        heard = run_alone(self._runners, Listen(), _LISTEN_S)
        return heard if isinstance(heard, Heard) else None


def _check_counts(threads: int, builders: int, *, local: bool) -> None:
    cores = len(os.sched_getaffinity(0))
    if threads < 1 or builders < 1:
        raise InvalidOption(f"threads and builders must be at least 1, not {threads} and {builders}")
    if local and threads > cores:  # they would wait for each other's turns, which is what would be timed
        message = f"{threads} threads cannot be timed on {cores} cores"
        raise InvalidOption(message, remedy=f"At most --threads {cores}.", option="threads")

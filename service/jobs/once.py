"""One compile for all who ask for the same: under the key's lock, in a child, into the store."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relaxc.service.artifact.entry import Entry
from relaxc.service.artifact.key import Key
from relaxc.service.artifact.packing import check_made
from relaxc.service.artifact.store import Store
from relaxc.service.compiling.stages import STAGES
from relaxc.service.config import settings
from relaxc.service.errors import Busy, Cancelled, CompileFailed
from relaxc.service.input_files import check_unchanged
from relaxc.service.jobs.kernels import Journal, Kernels
from relaxc.service.process.bounds import MAX_OUTCOME_BYTES
from relaxc.service.process.limits import Limits
from relaxc.service.process.plain import open_left, plain_file
from relaxc.service.process.pool import Cancellation
from relaxc.service.process.runner import Runner
from relaxc.service.process.sandbox.confinement import Confinement
from relaxc.service.process.task import Emit, Flavour, Task
from relaxc.service.process.timings import told
from relaxc.service.process.workspace import Workspace
from relaxc.service.repro import repro_command
from relaxc.service.request import CompileRequest

__all__ = ["COMPILE_ENTRY", "Ask", "CompileOnce"]

COMPILE_ENTRY = "relaxc.service.jobs.entries:compile_model"
"""What a child runs, but in tests."""

_LOCK_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Ask:
    """A compile that somebody waits for; `name` is what they call the model, `waited_s` how long it was queued.

    With `anew` the store is not asked first; each stage writes into `dump_dir` what it saw. `finished` is called with
    the files of what was compiled, right before the store moves them.
    """

    request: CompileRequest
    key: Key
    name: str
    confinement: Confinement
    waited_s: float
    dump_dir: Path | None = None
    anew: bool = False
    finished: Callable[[Sequence[Path]], None] = lambda files: None


class CompileOnce:
    """Runs compiles, for any number of threads. `entry` is what a child runs (docs/stages.md says what it leaves)."""

    def __init__(self, store: Store, pool: Runner, workspace: Workspace, limits: Limits, entry: str) -> None:
        self.store = store
        self._pool = pool
        self._workspace = workspace
        self._limits = limits
        self._entry = entry
        self._kernels = Kernels.below(store.root, settings().kernel_cache_max_bytes)

    def __call__(
        self,
        ask: Ask,
        on_event: Emit,
        cancellation: Cancellation,
        *,
        lookup: Callable[[Key], Entry | None] | None = None,
        around: Callable[[Path], AbstractContextManager[object]] = nullcontext,
    ) -> Entry:
        """Compiles unless another process that shares the store has done so meanwhile.

        `lookup` is where that is asked, the store if None; `around` is entered while the job's folder is there. Raises
        what `Pool.run`, `check_unchanged` and `Store.put` raise.
        """
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(self.store.lock(ask.key, timeout_s=_LOCK_POLL_S))
                    break
                except Busy:
                    if cancellation.cancelled:
                        raise Cancelled("the compile was cancelled while another process ran it") from None
            found = None if ask.anew else (lookup or self.store.lookup)(ask.key)
            return found or self._compile(ask, on_event, cancellation, around)

    def _compile(
        self,
        ask: Ask,
        on_event: Emit,
        cancellation: Cancellation,
        around: Callable[[Path], AbstractContextManager[object]],
    ) -> Entry:
        workdir = self._workspace.folder("job")
        try:
            with self._kernels.journal(workdir, ask.key, settings().build_processes) as journal, around(workdir):
                apart = ask.dump_dir is None and any(each.kind == "llvm" for each in ask.request.target.each)
                task = self._task(ask, workdir, journal if apart else None)
                result = self._pool.run(task, on_event, cancellation=cancellation)
                self._kernels.adopt(journal)
                files = [plain_file(workdir, name) for name in result["files"]]
                check_made(files, ask.request.model.digest)
                check_unchanged(ask.request.model.seen + ask.key.seen)  # the key is of before the compile read them
                ask.finished(files)
                return self.store.put(ask.key, files, _record(workdir, self._limits, ask))
        finally:
            self._workspace.remove(workdir)

    def _task(self, ask: Ask, workdir: Path, journal: Journal | None) -> Task:
        """The call of the entry; with a journal its kernels are built apart from the process that reads the model."""
        payload = {
            "request": ask.request.to_dict(),
            "dump_dir": str(ask.dump_dir.absolute()) if ask.dump_dir else None,
            "records": dict(ask.key.entries).get("tuning.records"),
            "kernels": journal.payload if journal else None,
        }
        published = (self._kernels.root,) if journal else ()
        return Task(
            self._entry,
            payload,
            workdir,
            Flavour(ask.request.model.format),
            self._limits,
            repro_command(ask.request, ask.name),
            replace(ask.confinement, published=published),
        )


def _record(workdir: Path, limits: Limits, ask: Ask) -> dict[str, Any]:
    """The record of the build, which everybody who asks for the same is given.

    Of the child's word it has numbers alone: how long each stage and step took, no longer than a job may.
    """
    with open_left(workdir, "build.json") as file:
        text = file.read(MAX_OUTCOME_BYTES + 1)
    if len(text) > MAX_OUTCOME_BYTES:
        raise CompileFailed(f"the job's build.json has over {MAX_OUTCOME_BYTES} bytes")
    try:
        data = json.loads(text)
        seconds = data["stages"].items()
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise CompileFailed("the job's build.json has no stages") from error
    stages = {name: took for name, took in seconds if name in STAGES and _is_time(took, limits.timeout_s)}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"stages": stages, "host": platform.node(), "date": date, "waited_s": ask.waited_s}
    steps = told(data.get("timings"), limits.timeout_s)
    return {**record, "timings": steps} if steps else record


def _is_time(value: object, most_s: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most_s

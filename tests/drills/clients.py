"""Clients of a drill: they upload, submit, wait and download through every death of the server, and keep account."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relaxc.service.artifact.entry import sha256_of
from relaxc.service.client import Client
from relaxc.service.client import upload as parts
from relaxc.service.client.flow import Action, Read
from relaxc.service.client.job import Event, Job, Model
from relaxc.service.client.retry import Patience
from relaxc.service.errors import CompileError
from tests.api.conftest import make_onnx
from tests.drills.entries import TRIALS, Act
from tests.drills.world import Clock

__all__ = ["SCRIPTS", "Accepted", "Account", "Visitor", "stuck"]

PART_BYTES = 1 << 17
"""Of an upload: small, so that a kill finds one under way."""

_PATIENCE = Patience(unreachable_s=300.0, refused_s=300.0)
_SILENCE_S = 240.0
_STUCK_S = 240.0
_SLOW_READ_S = 0.006


@dataclass(slots=True)
class Accepted:
    """A job that was answered 202, what it should come to, and what it came to."""

    id: str
    number: int
    wants: str
    code: str
    done: Job | None = None


@dataclass
class Account:
    """What the clients of one round did; `phases` has what each is at now.

    `surprises` are errors that only a killed process explains, `wrong` what nothing does.
    """

    accepted: list[Accepted] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    uploads: int = 0
    downloads: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _SlowClient(Client):
    """One that reads its answers slowly, so that a kill finds a download under way."""

    def _perform(self, action: Action, opened: Any) -> Any:
        if isinstance(action, Read):
            time.sleep(_SLOW_READ_S)
        return super()._perform(action, opened)


class Visitor:
    """One client, in a thread: `script` says what it does."""

    def __init__(
        self, name: str, url: str, script: Callable[[Visitor], None], account: Account, folder: Path, rng: random.Random
    ) -> None:
        self.name, self.account, self.rng, self.folder = name, account, rng, folder
        self.client = _SlowClient(url, timeout_s=_SILENCE_S, patience=_PATIENCE)
        self._script = script
        self.thread = threading.Thread(target=self._go, name=name, daemon=True)
        self.thread.start()

    def _go(self) -> None:
        try:
            with self.client:
                self._script(self)
        except Exception as error:  # noqa: BLE001  # a thread's only way to say it
            self.account.wrong.append(f"{self.name} in {self.account.phases.get(self.name)}: {error!r}")
        finally:
            self.account.phases.pop(self.name, None)

    @contextmanager
    def at(self, phase: str) -> Iterator[None]:
        """While it is at this."""
        self.account.phases[self.name] = phase
        yield
        self.account.phases[self.name] = "between"

    def upload(self, width: int) -> str:
        """A new model of `width`² floats, in parts; its digest."""
        path = self.folder / f"{self.name}-{self.rng.getrandbits(32):08x}.onnx"
        path.write_bytes(make_onnx(width, seed=self.rng.getrandbits(32)))
        with self.at("upload"):
            model = self._uploaded(path)
        if model.digest != sha256_of(path):
            self.account.wrong.append(f"the server knows {path.name} as {model.digest}")
        path.unlink()
        self.account.uploads += 1
        return model.digest

    def _uploaded(self, path: Path) -> Model:
        """Asks again where the process that reads the model was killed, which the server says."""
        while True:
            try:
                return self.client.upload(path)
            except CompileError as error:
                self.account.surprises.append(f"upload: {error.code}")

    def submit(self, kind: str, act: Act, *, wants: str = "succeeded", code: str = "", **request: Any) -> Accepted:
        """Has a job accepted."""
        number = self.rng.getrandbits(28)
        options = {"seed": act.seed(number), "shapes": request.pop("shapes", {})}
        with self.at("submit"):
            job = self.client.submit(kind, options=options, **request)
        accepted = Accepted(job.id, number, wants, code)
        with self.account.lock:
            self.account.accepted.append(accepted)
        return accepted

    def finish(self, accepted: Accepted) -> Job:
        """Follows it to its end: every event in order, and once."""
        numbers: list[int] = []
        with self.at("wait"):
            for event in self.client.events(accepted.id):
                numbers.append(event.number)
                accepted.done = _job_of(event)
        if numbers != list(range(1, len(numbers) + 1)):
            self.account.wrong.append(f"the events of {accepted.id} come as {numbers}")
        with self.at("wait"):
            accepted.done = accepted.done or self.client.job(accepted.id)
        return accepted.done

    def fetch(self, job: Job) -> None:
        """Downloads what it made, if it did; the client goes on where a connection broke off, and checks the digest."""
        if job.artifact is None:
            return
        output = self.folder / f"{self.name}-{job.id}.so"
        with self.at("download"):
            self.client.fetch(job, output)
        if hashlib.sha256(output.read_bytes()).hexdigest() != job.artifact:
            self.account.wrong.append(f"{job.artifact} came with other bytes")
        output.unlink()
        self.account.downloads += 1


def stuck(visitors: Iterable[Visitor], account: Account, clock: Clock) -> list[str]:
    """Waits for the clients of a round; who did not come to an end, and where."""
    deadline = clock.now_s + _STUCK_S
    for visitor in visitors:
        while visitor.thread.is_alive() and clock.now_s < deadline:
            visitor.thread.join(0.1)
    return [f"{name} is stuck in {phase}" for name, phase in sorted(account.phases.items())]


def _job_of(event: Event) -> Job | None:
    return Job.from_dict(event.data) if event.kind == "done" else None


def _large(visitor: Visitor) -> None:
    """A model of 1 to 3 MB, and a library of 2 to 6 MiB."""
    model = visitor.upload(visitor.rng.randrange(500, 900))
    shapes = {"sleep_s": [visitor.rng.randrange(2)], "weights_mib": [visitor.rng.randrange(2, 7)]}
    made = visitor.finish(visitor.submit("compile", Act.MADE, model=model, shapes=shapes))
    visitor.fetch(made)
    tuned = visitor.finish(visitor.submit("tune", Act.MADE, model=model, time_s=60.0))
    if tuned.state == "succeeded" and tuned.result.get("trials") != TRIALS:
        visitor.account.wrong.append(f"{tuned.id} made {tuned.result}")
    if made.artifact is not None:
        visitor.finish(visitor.submit("bench", Act.MADE, artifact=made.artifact, time_s=0.1))
        visitor.fetch(made)


def _many(visitor: Visitor) -> None:
    """Short jobs at once, some of which fail as they should."""
    model = visitor.upload(visitor.rng.randrange(4, 200))
    jobs = [
        visitor.submit("compile", Act.SPRAWL, model=model),
        visitor.submit("compile", Act.REFUSE, model=model, wants="failed", code="unsupported-model"),
        visitor.submit("compile", Act.CRASH, model=model, wants="failed", code="compiler-crashed"),
        visitor.submit("compile", Act.MADE, model=model, priority=1),
    ]
    for job in jobs:
        visitor.fetch(visitor.finish(job))


def _real(visitor: Visitor) -> None:
    """A real compile, and a quick one beside it."""
    model = visitor.upload(visitor.rng.randrange(4, 64))
    real = visitor.submit("compile", Act.COMPILE, model=model)
    visitor.fetch(visitor.finish(visitor.submit("compile", Act.MADE, model=model)))
    visitor.fetch(visitor.finish(real))


SCRIPTS: dict[str, Callable[[Visitor], None]] = {"large": _large, "many": _many, "real": _real}

parts.CHUNK_BYTES = PART_BYTES

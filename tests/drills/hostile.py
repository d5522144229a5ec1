"""The hostile drill: many connections send everything that they should not, while good jobs run.

`python -m tests.drills.hostile --seconds 60 --connections 16 --seed N` tells a line per kind of attack and a summary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from tests.api.conftest import ROOT, make_onnx
from tests.drills.attacks import bodies, forms, http, identities, models, uploads
from tests.drills.attacks.attack import Attack, Target
from tests.drills.attacks.wire import Answer
from tests.drills.hostile_entries import MARKER, SWAPPING, SWAPS
from tests.drills.hostile_good import Good, events_of
from tests.drills.hostile_jobs import Jobs, shared_model
from tests.drills.hostile_server import HostileServer, Memory

__all__ = ["run"]

MOST_BYTES = 256 << 20
"""What the server's own process may take on top of what it took at rest."""

_AT_REST_S = 240.0
_OURS = (str(ROOT), "site-packages", "Traceback (most recent call last)", "/usr/lib/python")
_BUGS = ("Traceback (most recent call last)", "incident ", "Fatal error", "Exception in ASGI")


def other_attacks() -> list[Attack]:
    """Every kind that is no model."""
    return [attack for module in (http, forms, uploads, bodies, identities) for attack in module.attacks()]


def in_order(attacks: list[Attack], seed: int) -> Iterator[Attack]:
    """One of each kind, then all of them, then again, each time in another order."""
    chosen = random.Random(seed)
    shuffled = chosen.sample(attacks, len(attacks))
    yield from {attack.kind: attack for attack in shuffled}.values()
    while True:
        yield from shuffled
        shuffled = chosen.sample(attacks, len(attacks))


class Attackers:
    """Connections that attack at the same time, and what came of it."""

    def __init__(self, target: Target, seconds: float, secret: str) -> None:
        self._target, self._secret = target, secret
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self.tried: dict[str, set[str]] = defaultdict(set)
        self.wrong: list[str] = []

    def run(self, attacks: Iterator[Attack]) -> None:
        """One connection's work; several may share the attacks."""
        while time.monotonic() < self._until:
            with self._lock:
                attack = next(attacks)
            try:
                answers = list(attack.send(self._target))
            except (OSError, ValueError, KeyError) as error:
                answers, wrong = [], [f"{type(error).__name__}: {error}"]
            else:
                wrong = list(self._objections(attack, answers))
            with self._lock:
                self.tried[attack.kind].add(attack.name)
                self.outcomes[attack.kind].update(_shown(answer) for answer in answers)
                self.wrong += [f"{attack.kind}, {attack.name}: {what}"[:600] for what in wrong]

    def _objections(self, attack: Attack, answers: list[Answer]) -> Iterator[str]:
        if len(answers) != 1:
            yield f"{len(answers)} answers: {[answer.outcome for answer in answers]}"
        for answer in answers:
            if answer.outcome not in attack.refusals:
                yield f"{answer.outcome}, not one of {sorted(attack.refusals)}: {answer.body[:200]!r}"
            if any(name == "x-injected" for name, _ in answer.headers):
                yield "a header of the attacker's is in the answer"
            told = answer.body.decode(errors="replace") + repr(answer.headers)
            yield from (f"the answer tells {secret}" for secret in (*_OURS, self._secret) if secret in told)


def _shown(answer: Answer) -> str:
    status, code = answer.outcome
    return f"{status or ''} {code}".strip()


def run(
    seconds: float,
    connections: int,
    seed: int,
    folder: Path,
    user: int | None = None,
    make: Callable[[Path, int | None], HostileServer] = HostileServer,
) -> dict[str, Any]:
    """The drill; its summary, in which `wrong` is empty where all held. `user` is whose the server is, ours if None."""
    lanes = [list(models.attacks()), other_attacks()]
    server = make(folder, user)
    with ExitStack() as stack:
        stack.callback(server.end)
        good = Good(Target(server.address, server.keys))
        job = good.job()
        target = Target(server.address, server.keys, _theirs(good, job))
        wrong = [*_escapes(good), *_swaps(good, job["model"])]
        jobs = Jobs(good, server.seen_pid, server.client.get("/readyz").json()["sandbox"]["onnx"])
        wrong += jobs.attack(shared_model(target))
        memory = stack.enter_context(closing(Memory(server.process.pid)))
        attackers = Attackers(target, seconds, str(folder))
        _together(good, attackers, [in_order(attacks, seed) for attacks in lanes], connections)
        wrong += [*attackers.wrong, *(f"good: {what}" for what in good.wrong), *_escapes(good)]
        wrong += _at_rest(server, good)
        if memory.peak - memory.before > MOST_BYTES:
            wrong.append(f"the server's memory grew from {memory.before} to {memory.peak} bytes")
    wrong += [f"the log tells of a bug: {line}" for line in server.told().splitlines() if _is_bug(line)]
    return {
        "seed": seed,
        "seconds": seconds,
        "connections": connections,
        "attacks": {kind: dict(found) for kind, found in sorted(attackers.outcomes.items())},
        "cases tried": sum(map(len, attackers.tried.values())),
        "cases": len({(attack.kind, attack.name) for attacks in lanes for attack in attacks}),
        "attacks of jobs": len(jobs.attacks),
        "sandbox": {name: jobs.sandbox[name] for name in ("user", "processes", "modes", "files")},
        "good jobs": good.succeeded,
        "memory_bytes": {"before": memory.before, "peak": memory.peak},
        "wrong": wrong,
    }


def _theirs(good: Good, job: dict[str, Any]) -> dict[str, str]:
    """What the attacker would like to have: of the good key, its job, and an upload that it has begun."""
    upload = secrets.token_hex(32)
    part = "Content-Range: bytes 0-499/1000"
    assert good.target.ask("PUT", f"/v1/uploads/{upload}", part, key="good", body=b"x" * 500).status == 202
    own = make_onnx(8, seed=99_999)
    kept = good.target.ask("PUT", f"/v1/uploads/{hashlib.sha256(own).hexdigest()}", body=own)
    assert kept.status == 201
    ids = {"job": job["id"], "model": job["model"], "artifact": job["artifact"], "upload": upload}
    return {**ids, "own model": kept.json["digest"]}


def _together(good: Good, attackers: Attackers, lanes: list[Iterator[Attack]], connections: int) -> None:
    """As many connections for each lane: who sends models mostly waits for their jobs."""
    ways = [partial(good.run, way) for way in (good.compile_onnx, good.compile_pt2, good.job)]
    workers = [threading.Thread(target=work) for work in ways]
    hostile = [threading.Thread(target=attackers.run, args=(lane,)) for lane in lanes for _ in range(connections)]
    for thread in (*workers, *hostile):
        thread.start()
    for thread in hostile:
        thread.join()
    good.stop()
    for thread in workers:
        thread.join()


def _escapes(good: Good) -> Iterator[str]:
    """A job whose code tries to get out is told of each attempt that it was refused, and nobody has called."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        job = good.escaping_job(listener.getsockname()[1])
        listener.settimeout(0.2)
        try:
            listener.accept()[0].close()
            yield "a job has reached a listener on loopback"
        except TimeoutError:
            pass
    told = [event.get("message", "") for event in events_of(good.target, job["id"])]
    tried = [text for text in told if text.startswith("attempt ")]
    if len(tried) != 6:
        yield f"a job that tries to get out tells {tried}"
    yield from (text for text in tried if ": refused: " not in text)


def _swaps(good: Good, model: str) -> Iterator[str]:
    """A job that puts something else in place of its log ends as any other, and nothing of the server is shown."""
    for index, name in enumerate(SWAPS):
        job, log = good.swapping_job(SWAPPING + index, model)
        error = job["error"] or {}
        if error.get("code") != "compiler-crashed":
            yield f"a job whose log is {name} ended with {error}"
        told = log + json.dumps(error).encode()
        for secret in (MARKER, "SQLite format", "RELAXC_DATABASE_URL", str(good.target.keys["admin"])):
            if secret.encode() in told:
                yield f"a job whose log is {name} shows {secret}"


def _at_rest(server: HostileServer, good: Good) -> Iterator[str]:
    """The server is as it was, and still compiles."""
    health = server.client.get("/healthz")
    if health.status_code != 200:
        yield f"healthz is {health.status_code}"
    ready = server.client.get("/readyz")
    if ready.status_code != 200:
        yield f"readyz is {ready.status_code}: {ready.text}"
    good.job()
    deadline = time.monotonic() + _AT_REST_S
    while (server.jobs() or server.left()) and time.monotonic() < deadline:
        time.sleep(0.1)
    yield from (f"a child is left: {process}" for process in server.jobs())
    yield from (f"a file is left: {path}" for path in server.left())


def _is_bug(line: str) -> bool:
    return any(sign in line for sign in _BUGS)


def main() -> int:
    """Runs it; 0 where all held, 1 where not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder to keep; a temporary one if not given")
    parser.add_argument("--user", type=int, help="whose the server is and its jobs are, where root starts the drill")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relaxc-drill-")))
        folder.chmod(0o755)
        options = (arguments.seconds, arguments.connections, arguments.seed, folder.resolve() / "drill")
        summary = run(*options, arguments.user)
    for kind, outcomes in summary["attacks"].items():
        print(f"{kind:26} {sum(outcomes.values()):5}  {', '.join(f'{n} x {what}' for what, n in outcomes.items())}")
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""The drill of the disk that fills: `python -m tests.drills.disk --seconds 120 --clients 16 --seed N`.

Clients upload, compile, tune, download and delete against a server whose folder is a small file system, while somebody
else fills that to its last byte and frees it, again and again. A summary as JSON; exit code 1 for what is wrong: an
accepted job that comes to no end, a 5xx that is neither 503 nor 507, a server that does not take work again by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.api.conftest import make_onnx
from tests.disks import CannotMount, mounted
from tests.drills.entries import Act
from tests.drills.world import Server

__all__ = ["run"]

_DISK_BYTES, _RESERVE_BYTES = 256 << 20, 64 << 20
_SETTINGS = {
    "DISK_RESERVE_BYTES": _RESERVE_BYTES,
    "CACHE_MAX_BYTES": 32 << 20,
    "QUEUE_MAX": 400,
    "QUOTA_QUEUED_JOBS": 400,
}
_ENDS = ("succeeded", "failed", "cancelled")
_MAY_FAIL = {"store-unwritable", "compiler-out-of-disk", "service-error", "model-not-found", "artifact-not-found"}
_FULL = {503, 507}
_PATIENCE_S = 200.0
_KEPT_MODELS = 3


@dataclass
class Account:
    """What all clients saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Visitor:
    """One client, in a thread of its own, until it is told to stop."""

    def __init__(self, url: str, account: Account, seed: int, stop: threading.Event) -> None:
        self._client = httpx.Client(base_url=url, timeout=_PATIENCE_S)
        self._account, self._stop = account, stop
        self._rng = random.Random(seed)
        self._models: list[str] = []
        self.thread = threading.Thread(target=self._go)
        self.thread.start()

    def _go(self) -> None:
        with self._client:
            while not self._stop.is_set():
                try:
                    self._round()
                except (httpx.HTTPError, KeyError, ValueError) as error:
                    self._account.wrong.append(f"{type(error).__name__}: {error}")

    def _round(self) -> None:
        model = make_onnx(self._rng.randrange(50, 400), seed=self._rng.getrandbits(30))
        kept = self._ask("PUT", f"/v1/uploads/{hashlib.sha256(model).hexdigest()}", content=model)
        if kept.status_code in (200, 201):
            digest = kept.json()["digest"]
            self._models.append(digest)
            self._jobs(digest)
        else:
            time.sleep(0.2)  # as Retry-After would have it, but sooner
        if self._rng.random() < 0.3:
            self._ask("POST", "/v1/compile", files={"model": ("m.onnx", model)}, data={"options": self._options()})
        while len(self._models) > _KEPT_MODELS:
            self._ask("DELETE", f"/v1/models/{self._models.pop(0)}")

    def _jobs(self, digest: str) -> None:
        wanted = {"kind": "compile", "model": digest, "options": json.loads(self._options())}
        compiled = self._submitted(wanted)
        if self._rng.random() < 0.2:
            self._submitted({"kind": "tune", "model": digest, "time_s": 0.2})
        if compiled is None:
            return
        self._ask("GET", f"/v1/jobs/{compiled}/logs")
        job = self._ask("GET", f"/v1/jobs/{compiled}")
        if job.status_code == 200 and (artifact := job.json()["artifact"]):
            self._ask("GET", f"/v1/artifacts/{artifact}")

    def _options(self) -> str:
        seed = Act.MADE.seed(self._rng.getrandbits(20))
        return json.dumps({"seed": seed, "shapes": {"weights_mib": [self._rng.randrange(1, 6)]}})

    def _submitted(self, wanted: dict[str, Any]) -> str | None:
        answer = self._ask("POST", "/v1/jobs", json=wanted)
        if answer.status_code != 202:
            return None
        with self._account.lock:
            self._account.accepted.append(answer.json()["id"])
        return str(answer.json()["id"])

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        answer = self._client.request(method, path, **request)
        kind = "/".join(path.split("/")[:3])
        with self._account.lock:
            self._account.statuses[f"{method} {kind} {answer.status_code}"] += 1
            if answer.status_code >= 500 and answer.status_code not in _FULL:
                self._account.wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        return answer


def _fill(disk: Path, stop: threading.Event, rng: random.Random, found: Counter[str]) -> None:
    """Take all that is left, for some seconds, and give it back."""
    ballast = disk / "ballast"
    while not stop.wait(rng.uniform(2.0, 6.0)):
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        found["times full"] += 1
        stop.wait(rng.uniform(2.0, 6.0))
        ballast.unlink()
    ballast.unlink(missing_ok=True)


def run(seconds: float, clients: int, seed: int, folder: Path) -> dict[str, Any]:
    """The drill; its summary, in which `wrong` is empty where all held. Raise CannotMount."""
    account, stop, filled, rng = Account(), threading.Event(), Counter[str](), random.Random(seed)
    (folder / "tmp").mkdir(parents=True)
    with ExitStack() as stack:
        disk = stack.enter_context(mounted(folder / "disk", _DISK_BYTES))
        database = f"sqlite:///{disk / 'cache' / 'service.sqlite3'}"
        server = Server(disk / "cache", database, folder / "tmp", log=folder / "server.log", **_SETTINGS)
        stack.callback(server.kill)
        pid = server.pid
        visitors = [Visitor(server.url, account, rng.getrandbits(30), stop) for _ in range(clients)]
        filler = threading.Thread(target=_fill, args=(disk, stop, random.Random(seed), filled))
        filler.start()
        time.sleep(seconds)
        stop.set()
        for thread in (filler, *(visitor.thread for visitor in visitors)):
            thread.join()
        ends: Counter[str] = Counter()
        wrong = [*account.wrong, *_recovers(server, account, ends)]
        if server.pid != pid or server.starts != 1:
            wrong.append("the server was started again")
        wrong += _of_log(folder / "server.log")
    refused = sum(count for what, count in account.statuses.items() if int(what.split()[-1]) in _FULL)
    return {
        "seed": seed,
        "seconds": seconds,
        "clients": clients,
        "accepted": len(account.accepted),
        "refused": refused,
        "times full": filled["times full"],
        "ends": dict(ends),
        "answers": dict(sorted(account.statuses.items())),
        "wrong": wrong,
    }


def _recovers(server: Server, account: Account, ends: Counter[str]) -> Iterator[str]:
    """Every accepted job comes to an end, and new work is taken and done, without anybody's help but space."""
    deadline = time.monotonic() + _PATIENCE_S
    with httpx.Client(base_url=server.url, timeout=_PATIENCE_S) as client:
        for id in account.accepted:
            while (answer := client.get(f"/v1/jobs/{id}")).status_code != 200 or answer.json()["state"] not in _ENDS:
                if time.monotonic() > deadline:
                    yield f"job {id}: {answer.status_code} {answer.text[:200]}"
                    break
                time.sleep(0.1)
            else:
                job = answer.json()
                code = (job["error"] or {}).get("code", "")
                ends[f"{job['state']} {code}".strip()] += 1
                if job["state"] != "succeeded" and code not in _MAY_FAIL:
                    yield f"job {id} ends with {job['error']}"
        while (ready := client.get("/readyz")).status_code != 200:
            if time.monotonic() > deadline:
                yield f"it does not get ready again: {ready.text}"
                return
            time.sleep(0.5)
        model = make_onnx(8, seed=4242)
        done = client.post("/v1/compile", files={"model": ("m.onnx", model)}, data={"options": '{"seed": 99990}'})
        if done.status_code != 200:
            yield f"a compile afterwards: {done.status_code} {done.text[:300]}"


def _of_log(log: Path) -> Iterator[str]:
    for line in log.read_text().splitlines():
        if any(sign in line for sign in ("Traceback (most recent", "incident ", "Exception in ASGI")):
            yield f"the log tells of a bug: {line}"


def main() -> int:
    """Runs it; 0 where all held, 1 where not, 2 where no file system can be mounted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="relaxc-drill-") as folder:
        try:
            summary = run(arguments.seconds, arguments.clients, arguments.seed, Path(folder) / "drill")
        except CannotMount as error:
            print(error, file=sys.stderr)
            return 2
    print(json.dumps(summary, indent=2))
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())

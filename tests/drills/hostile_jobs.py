"""The hostile drill's jobs whose model runs an attacker's code: what they try, take and say, what may come of it."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.api.conftest import make_onnx
from tests.drills.attacks.amounts import AMOUNTS
from tests.drills.attacks.attack import Target
from tests.drills.attacks.child import BESIDE_SIGNALS
from tests.drills.hostile_entries import LYING, TRYING, WASTING
from tests.drills.hostile_good import Good, events_of
from tests.jobs.liars import LIES

__all__ = ["Jobs", "shared_model"]

_NOT_TRIED = ("Bad address", "Invalid argument", "Bad file descriptor")
"""What the kernel says of arguments that nobody would send: such a try shows nothing."""

_REFUSED_LIES = ("other_weights", "no_weights", "other_name", "other_model", "mumble")
_KEPT_LIES = ("boast",)


@dataclass
class Jobs:
    """Attacks one server; `attacks` has the name of each that was made."""

    good: Good
    pid: int
    sandbox: dict[str, Any]
    attacks: set[str] = field(default_factory=set)

    def attack(self, model: str) -> Iterator[str]:
        """All of it, through jobs of this model; what was wrong."""
        yield from self._tries(model)
        yield from self._amounts(model)
        yield from self._lies(model)

    def _tries(self, model: str) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            shapes = {"pid": [self.pid], "port": [listener.getsockname()[1]]}
            job = self._done(model, TRYING, "good", shapes)
        told = [event.get("message", "") for event in events_of(self.good.target, job["id"])]
        tried = dict(text.removeprefix("attempt ").split(": ", 1) for text in told if text.startswith("attempt "))
        if _code(job) != "unsupported-model" or not str(job["error"]["message"]).startswith(f"{len(tried)} attempts"):
            yield f"a job that tries everything ends with {job['error']}"
        for name, text in tried.items():
            self.attacks.add(name)
            may = self.sandbox["processes"] == "signals" and name.partition(" of the server")[0] in BESIDE_SIGNALS
            if not text.startswith("refused: ") and not may:
                yield f"{name}: {text}"
            if name.startswith("call ") and any(words in text for words in _NOT_TRIED):
                yield f"{name} was not tried: {text}"

    def _amounts(self, model: str) -> Iterator[str]:
        for index, (name, amount) in enumerate(AMOUNTS.items()):
            self.attacks.add(name)
            if (code := _code(self._done(model, WASTING + index))) not in amount.ends:
                yield f"{name}: the job ends with {code or 'success'}, not {sorted(amount.ends)}"

    def _lies(self, model: str) -> Iterator[str]:
        """The attacker's job says something of what it made; the good key then asks for the same, honestly made."""
        names = [lie.__name__ for lie in LIES]
        for name in (*_REFUSED_LIES, *_KEPT_LIES):
            self.attacks.add(f"lie: {name}")
            job = self._done(model, LYING + names.index(name), "attacker", {"beside": [1]})
            if (_code(job) == "compile-failed") is not (name in _REFUSED_LIES):
                yield f"a job that lies ({name}) ends with {job['state']}, {job['error']}"
            if "evil" in json.dumps(job):
                yield f"the record of a build has the words of its child ({name})"
        honest = self._done(model, LYING, "good", {"beside": [1]})
        got = self.good.target.ask("GET", f"/v1/artifacts/{honest['artifact']}/weights", key="good")
        if honest["state"] != "succeeded" or got.status != 200:
            yield f"after the lies an honest job ends with {honest['error']}, its weights with {got.status}"

    def _done(
        self, model: str, seed: int, key: str = "attacker", shapes: dict[str, list[int]] | None = None
    ) -> dict[str, Any]:
        return self.good.done(model, {"seed": seed, "shapes": shapes or {}}, key)


def shared_model(target: Target) -> str:
    """The digest of a model that the good key and the attacker's both have, and may ask for alike."""
    model = make_onnx(8, seed=88_888)
    digest = hashlib.sha256(model).hexdigest()
    for key in ("good", "attacker"):
        answer = target.ask("PUT", f"/v1/uploads/{digest}", key=key, body=model)
        assert answer.status in (200, 201), answer.body
    return digest


def _code(job: dict[str, Any]) -> str:
    return str((job["error"] or {}).get("code", ""))

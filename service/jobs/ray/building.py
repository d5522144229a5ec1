"""Candidates of a tuning built on other nodes: what its child asks for, done elsewhere, in a sandbox there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

__all__ = ["Builders"]

_TRIES = 3
_LATE_S = 45.0
"""What a build may take beside its time, before it is answered for: less than its tuning waits."""

_MOST = 64


class Builders:
    """Answers what a tuning asks for, as many at a time as other nodes can build now; a `Helper` of `Pool.run`.

    The child may ask for what it likes: it gets no more than so many builds at once, each in a sandbox as its own.
    """

    def __init__(self, resource: str, build: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        import ray

        self._ray = ray
        self.count = min(_MOST, int(ray.available_resources().get(resource, 0)))
        options = {"num_cpus": 0, "resources": {resource: 1}, "max_retries": _TRIES, "scheduling_strategy": "SPREAD"}
        self._build = ray.remote(**options)(build)
        self._threads = ThreadPoolExecutor(max(1, self.count), "build")
        self._under_way = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __call__(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Begin what is asked for, if it is a build."""
        number = question.pop("build", None)
        if not isinstance(number, int) or self._under_way >= self.count:
            return
        self._under_way += 1
        with contextlib.suppress(RuntimeError):  # the tuning has ended
            self._threads.submit(self._do, number, question, answer)

    def _do(self, number: int, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        try:
            found = self._built(question)
        finally:
            self._under_way -= 1
        answer({**found, "build": number})

    def _built(self, question: dict[str, Any]) -> dict[str, Any]:
        limit_s = question.get("limit_s")
        wait_s = (float(limit_s) if isinstance(limit_s, int | float) else 0.0) + _LATE_S
        asked = self._build.remote(question)
        try:
            found: dict[str, Any] = self._ray.get(asked, timeout=wait_s)
            return found
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(asked)
            return {"kind": "hung", "detail": f"no node has built it in {wait_s:g} s"}
        except self._ray.exceptions.RayError as error:
            return {"kind": "crashed", "detail": f"its node is lost: {type(error).__name__}"}

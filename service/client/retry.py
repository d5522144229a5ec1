"""When a call is made again, and after how long: one policy for tenacity's sync and async loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

from relaxc.service.client.answers import never_arrived
from relaxc.service.client.flow import Call
from relaxc.service.errors import Busy, RateLimited, RelaxcError, ServerUnreachable, ServiceError

__all__ = ["Patience"]

_BACK_OFF = wait_random_exponential(multiplier=0.2, max=5)
"""Seconds, doubling, with full jitter."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call is tried, in seconds.

    `unreachable_s` for a server that cannot be reached; `refused_s` for one that says to come again later (429 and
    503 with Retry-After), and for one that went away with work of ours.
    """

    unreachable_s: float = 3.0
    refused_s: float = 120.0

    def policy(self) -> dict[str, Any]:
        """Return arguments of tenacity's Retrying and AsyncRetrying, whose call takes the `Call` as its only
        argument.
        """
        return {"retry": _worth_it, "wait": _wait_s, "stop": self._over, "reraise": True}

    def _over(self, state: RetryCallState) -> bool:
        call, error = _call(state), _error(state)
        told_when = isinstance(error, RelaxcError) and "retry_after_s" in error.fields
        limit_s = self.refused_s if told_when or call.resumes else self.unreachable_s
        return (state.seconds_since_start or 0.0) + state.upcoming_sleep > limit_s


def _call(state: RetryCallState) -> Call:
    call = state.args[0]
    assert isinstance(call, Call)
    return call


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _worth_it(state: RetryCallState) -> bool:
    """A refusal for now did nothing; what may have been done is asked again only where twice is the same as once."""
    error = _error(state)
    if isinstance(error, Busy | RateLimited):
        return True
    if isinstance(error, ServerUnreachable):
        return never_arrived(error) or _call(state).repeatable
    return isinstance(error, ServiceError) and "retry_after_s" in error.fields and _call(state).repeatable


def _wait_s(state: RetryCallState) -> float:
    """What the server says, else more each time."""
    error = _error(state)
    if isinstance(error, RelaxcError) and "retry_after_s" in error.fields:
        return max(0.0, float(error.fields["retry_after_s"]))
    return _BACK_OFF(state)

"""What is tried again, how long, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from tenacity import Retrying

from relaxc.service.client.flow import Call
from relaxc.service.client.retry import Patience
from relaxc.service.errors import (
    Busy,
    InvalidTarget,
    RateLimited,
    RelaxcError,
    ServerUnreachable,
    ServiceError,
    StoreUnwritable,
)

GET, POST = Call("GET", "/x"), Call("POST", "/x", repeatable=False)
BROKEN, UNCONNECTED = httpx.ReadError("broken"), httpx.ConnectError("refused")


def _failing(errors: list[Callable[[], RelaxcError]]) -> Callable[[Call], str]:
    def send(call: Call) -> str:
        if errors:
            raise errors.pop(0)()
        return "answer"

    return send


def _unreachable(cause: httpx.TransportError) -> Callable[[], RelaxcError]:
    def make() -> RelaxcError:
        error = ServerUnreachable("gone")
        error.__cause__ = cause
        return error

    return make


def _tries(call: Call, *errors: Callable[[], RelaxcError], patience: Patience | None = None) -> list[float]:
    """The pauses between the tries. Raises what the call raises at the end."""
    pauses: list[float] = []
    policy = (patience or Patience(unreachable_s=1000)).policy()
    Retrying(**policy, sleep=pauses.append)(_failing(list(errors)), call)
    return pauses


def test_what_the_server_says_about_when_is_done() -> None:
    assert _tries(POST, lambda: Busy("full", retry_after_s=7.0), lambda: RateLimited("fast", retry_after_s=3.0)) == [
        7,
        3,
    ]
    assert _tries(GET, lambda: ServiceError("stopping", retry_after_s=1.0)) == [1]


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = _tries(GET, *[_unreachable(BROKEN)] * 40)
    assert len(pauses) == 40
    assert max(pauses) <= 5
    assert sum(pauses[:3]) < 0.2 + 0.4 + 0.8 + 1e-9


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (GET, lambda: InvalidTarget("no")),
        (GET, lambda: StoreUnwritable("full")),
        (POST, _unreachable(BROKEN)),
        (POST, lambda: ServiceError("stopping", retry_after_s=1.0)),
        (GET, lambda: ServiceError("a bug")),
    ],
)
def test_what_is_not_tried_again(call: Call, error: Callable[[], RelaxcError]) -> None:
    with pytest.raises(RelaxcError):
        _tries(call, error)


def test_what_never_arrived_is_safe_to_send_again() -> None:
    assert len(_tries(POST, _unreachable(UNCONNECTED))) == 1


def test_patience_ends() -> None:
    with pytest.raises(Busy):
        _tries(GET, lambda: Busy("full", retry_after_s=7.0), patience=Patience(refused_s=6.0))
    with pytest.raises(ServerUnreachable):
        _tries(GET, *[_unreachable(UNCONNECTED)] * 50, patience=Patience(unreachable_s=0.0))
    going_on = Call("GET", "/x", resumes=True)
    assert len(_tries(going_on, *[_unreachable(UNCONNECTED)] * 20, patience=Patience(unreachable_s=0.0))) == 20

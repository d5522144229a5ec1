"""Refusals and broken connections as the errors of service/errors.py, the same as a local call raises."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from relaxc.service.errors import RelaxcError, ServerUnreachable, ServiceError, by_code

__all__ = ["check", "never_arrived", "translated"]

_SHOWN_CHARS = 200


def check(response: httpx.Response) -> httpx.Response:
    """Return the response, if it is what was asked for; its body must have been read if not.

    Raise the error whose code the problem+json body names, with `retry_after_s` among its fields where the server
    says when to come again; ServiceError for a code that this version does not know, and ServerUnreachable for an
    answer that no relaxc server gives.
    """
    if response.is_success:
        return response
    problem = _problem(response)
    if problem is None:
        url, status = str(response.request.url), response.status_code
        message = f"{url} answered {status}, and not as a relaxc server does: {_text(response)}"
        raise ServerUnreachable(message, url=url, status=status)
    known = by_code().get(problem["code"], ServiceError)
    error = known(problem.get("detail", ""), remedy=problem.get("remedy"), **(problem.get("fields") or {}))
    if (wait_s := _retry_after_s(response)) is not None:
        error.fields.setdefault("retry_after_s", wait_s)
    if known is ServiceError:
        error.fields |= {"code": problem["code"], "status": response.status_code}
    raise error


def _problem(response: httpx.Response) -> dict[str, Any] | None:
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        problem = response.json()
    except ValueError:
        return None
    return problem if isinstance(problem, dict) and isinstance(problem.get("code"), str) else None


def _text(response: httpx.Response) -> str:
    if response.has_redirect_location:
        return f"it leads to {response.headers['location']}"
    text = " ".join(response.text.split())
    return text[:_SHOWN_CHARS] or response.reason_phrase


def _retry_after_s(response: httpx.Response) -> float | None:
    """Retry-After in seconds; its other form, a date, no server of ours sends."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdigit() else None


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn httpx's errors into ServerUnreachable, with theirs as the cause."""
    try:
        yield
    except httpx.InvalidURL as error:
        raise ServerUnreachable(f"{url} is no address: {error}", url=url) from error
    except httpx.TransportError as error:
        raise ServerUnreachable(f"cannot talk to {url}: {_reason(error)}", url=url, **_certificate(error)) from error


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.TimeoutException):
        words = {httpx.ConnectTimeout: "connect", httpx.ReadTimeout: "answer", httpx.WriteTimeout: "take what is sent"}
        return f"it did not {words.get(type(error), 'answer')} in time"
    return str(error) or type(error).__name__


def _certificate(error: BaseException) -> dict[str, str]:
    """A remedy where the server's certificate is what is wrong."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return {}
    return {"remedy": "Set SSL_CERT_FILE to the certificate of the authority that signed the server's."}


def never_arrived(error: RelaxcError) -> bool:
    """Return whether the request behind this error was not sent at all, so that sending it again cannot do it twice."""
    return isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)

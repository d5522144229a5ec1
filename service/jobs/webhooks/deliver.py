"""Tells the end of a job to who asked for that: signed, to public addresses only, again until it has arrived."""

from __future__ import annotations

import hashlib
import hmac
import logging
import random
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpcore

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, ServiceError
from relaxc.service.jobs.database import deliveries
from relaxc.service.jobs.database.deliveries import Delivery
from relaxc.service.jobs.database.engine import Database
from relaxc.service.jobs.webhooks.public_network import PublicNetwork, Refused, is_public

__all__ = ["WEBHOOK_THREADS", "Webhooks", "check_url", "signature"]

_LOG = logging.getLogger("relaxc.webhooks")
WEBHOOK_THREADS = 4
_TIMEOUT_S = 10.0
_HOLD_S = 60.0
_POLL_S = 5.0
_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 600.0
_GIVE_UP_S = 3600.0
_MAX_URL = 2048
_GONE = 410


def check_url(url: str) -> None:
    """Raise InvalidOption for what no webhook is sent to, as far as the address itself tells."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidOption(f"the webhook is no URL: {error}", option="webhook") from error
    if not url.isascii() or parts.scheme not in ("http", "https") or not host or "%" in host:
        raise InvalidOption("a webhook is an http or https URL", option="webhook")
    if parts.username is not None:
        raise InvalidOption("a webhook's URL has no user's name", option="webhook")
    if len(url) > _MAX_URL or not url.isprintable() or " " in url:
        raise InvalidOption(f"a webhook's URL has at most {_MAX_URL} printable characters", option="webhook")
    if not settings().webhook_private and is_public(host) is False:
        raise InvalidOption(f"webhooks do not go to {host}, which is no public address", option="webhook")


def signature(secret: str, time: int, body: str) -> str:
    """Return the value of Relaxc-Signature."""
    mac = hmac.new(secret.encode(), f"{time}.{body}".encode(), hashlib.sha256)
    return f"t={time},v1={mac.hexdigest()}"


class Webhooks:
    """Threads that make the calls that are due; what is to be sent, and when, is in the database.

    `secret_of` gives what signs for an owner, None for a call that is not signed. An owner has one call at a time, and
    owners take turns: a receiver that answers nobody delays its owner's calls, not others'.
    """

    def __init__(
        self, database: Database, secret_of: Callable[[str], str | None], *, threads: int = WEBHOOK_THREADS
    ) -> None:
        """Without threads it makes no calls: servers do, and workers may not reach the Internet."""
        self._database = database
        self._secret_of = secret_of
        self._condition = threading.Condition()
        self._choosing = threading.Lock()
        self._sending: set[str] = set()
        self._served: dict[str, float] = {}
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"webhook-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Look for deliveries at once: a job has ended."""
        with self._condition:
            self._condition.notify()

    def close(self) -> None:
        """Return when no call is being made."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self._closed:
            try:
                delivery = self._next()
                if delivery is not None:
                    self._send(delivery)
                    continue
                pause_s = self._pause_s()
            except ServiceError as error:
                _LOG.warning("%s", error)
                pause_s = _POLL_S
            except Exception:  # noqa: BLE001  # a bug must not end what all later calls need
                _LOG.exception("webhooks go on")
                pause_s = _POLL_S
            with self._condition:
                if not self._closed:
                    self._condition.wait(pause_s)

    def _next(self) -> Delivery | None:
        """What is due for the owner who was served the longest ago, of those who have no call now."""
        with self._choosing:
            with self._database.read() as connection:
                since = deliveries.owners_due(connection)
            free = since.keys() - self._sending
            if not free:
                return None
            owner = min(free, key=lambda owner: (self._served.get(owner, 0.0), since[owner]))
            with self._database.begin() as connection:
                delivery = deliveries.take_due(connection, owner, _HOLD_S)
            if delivery is not None:
                self._served[owner] = time.monotonic()
                self._sending.add(owner)
            return delivery

    def _send(self, delivery: Delivery) -> None:
        try:
            self._settle(delivery, *_sent(delivery, self._secret_of(delivery.owner)))
        finally:
            with self._choosing:
                self._sending.discard(delivery.owner)

    def _pause_s(self) -> float:
        with self._choosing:
            sending = tuple(self._sending)  # whose thread asks again when it has sent
        with self._database.read() as connection:
            due = deliveries.next_due(connection, sending)
        return _POLL_S if due is None else min(_POLL_S, max(0.01, due - time.time()))

    def _settle(self, delivery: Delivery, why: str, again: bool) -> None:
        with self._database.begin() as connection:
            if not why:
                deliveries.delivered(connection, delivery.id)
                return
            due = time.time() + _retry_s(delivery.attempts)
            given_up = not again or due > delivery.created + _GIVE_UP_S
            deliveries.failed(connection, delivery.id, why, None if given_up else due)
        what = "is given up" if given_up else "is tried again"
        _LOG.warning("webhook of job %s %s after try %d: %s", delivery.job, what, delivery.attempts, why)


def _retry_s(attempts: int) -> float:
    pause: float = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** (attempts - 1))
    return pause * random.uniform(0.75, 1.25)


def _sent(delivery: Delivery, secret: str | None) -> tuple[str, bool]:
    """Why the receiver does not have it, empty where it has; and whether to try again."""
    headers: dict[bytes | str, bytes | str] = {"Content-Type": "application/json", "User-Agent": "relaxc"}
    headers["Relaxc-Job"] = delivery.job
    if secret is not None:
        headers["Relaxc-Signature"] = signature(secret, int(time.time()), delivery.body)
    body = delivery.body.encode()
    network = PublicNetwork(time.monotonic() + _TIMEOUT_S, private=settings().webhook_private)
    timeout = {"timeout": dict.fromkeys(("connect", "read", "write", "pool"), _TIMEOUT_S)}
    try:
        with (
            httpcore.ConnectionPool(network_backend=network, max_connections=1) as pool,
            pool.stream("POST", delivery.url, headers=headers, content=body, extensions=timeout) as response,
        ):
            status = response.status
    except Refused as error:
        return str(error), False
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}", True
    return ("", False) if 200 <= status < 300 else (f"the receiver answered {status}", status != _GONE)

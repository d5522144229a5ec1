"""Connections to public addresses only: the name is looked up once, checked, and that very address connected to.

So a name that leads elsewhere on a second look (DNS rebinding) gains nothing. All of a call has one deadline.
"""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import socket
import threading
import time
from collections.abc import Iterable
from ssl import SSLContext
from typing import Any

import httpcore

__all__ = ["PublicNetwork", "Refused", "is_public"]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
_UNICAST = ipaddress.ip_network("2000::/3")
"""The IPv6 addresses that are the Internet's: all others are local or reserved (IANA's registry), whatever a version of
Python's `ipaddress` knows of them: 64:ff9b:1::/48 leads to IPv4 inside of a site, fec0::/10 is one."""
_DOCUMENTATION = ipaddress.ip_network("3fff::/20")  # RFC 9637


class Refused(Exception):
    """The address is not one that we call."""


def is_public(host: str) -> bool | None:
    """Return whether an IP address, in any form that getaddrinfo reads, is one of the Internet's; None for a name."""
    host = host.removesuffix(".")
    address = _address(host)
    if address is None:
        return False if host == "localhost" or host.endswith(".localhost") else None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if address not in _UNICAST or address in _DOCUMENTATION:
            return False
    return address.is_global and not address.is_multicast


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    with contextlib.suppress(ValueError, OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))  # 127.1, 0x7f.1, 2130706433
    return None


class PublicNetwork(httpcore.NetworkBackend):
    """For one call, until `deadline` (of time.monotonic); `private` allows every address."""

    def __init__(self, deadline: float, *, private: bool = False) -> None:
        self._deadline = deadline
        self._private = private
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a public address. Raise Refused, or httpcore's errors."""
        found = _looked_up(host, port, self._left(timeout))
        addresses = [str(address[0]) for *_, address in found]
        if not self._private and not all(is_public(address.partition("%")[0]) for address in addresses):
            raise Refused(f"{host} is no public address")
        stream = self._inner.connect_tcp(addresses[0], port, self._left(timeout), local_address, socket_options)
        return _Until(stream, self._deadline)

    def _left(self, timeout: float | None) -> float:
        return _left(self._deadline, timeout)


def _looked_up(host: str, port: int, limit_s: float) -> list[Any]:
    """What getaddrinfo finds, in a thread of its own: the resolver's time limits may add up to more than ours."""
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=look_up, daemon=True, name="relaxc-dns").start()
    try:
        answer = answers.get(timeout=limit_s)
    except queue.Empty:
        raise httpcore.ConnectTimeout(f"{host} was not found in time") from None
    if isinstance(answer, Exception):
        raise httpcore.ConnectError(f"{host} is not known: {answer}") from answer
    return answer


class _Until(httpcore.NetworkStream):
    """A stream whose every wait ends at the deadline."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(self._deadline, timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        stream = self._inner.start_tls(ssl_context, server_hostname, _left(self._deadline, timeout))
        return _Until(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _left(deadline: float, timeout: float | None) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the call took too long")
    return left if timeout is None else min(left, timeout)

"""Where a server listens, and with which certificate: everything that can be wrong before it starts."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from relaxc.service.errors import InvalidOption

__all__ = ["Tls", "is_loopback", "listen"]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the certificate with what it was signed by, and its key, which has no password."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise InvalidOption for files that cannot be used."""
        for option, path in (("--tls-cert", self.certificate), ("--tls-key", self.key)):
            if not path.is_file():
                raise InvalidOption(f"{option}: there is no file {path}", option=option)
        try:
            # An empty password: without one, OpenSSL would ask at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, password="")
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"{self.certificate} and {self.key} are no certificate and its key: {error}",
                remedy="Both are PEM files, the key without a password: openssl rsa -in KEY -out KEY.plain.",
                option="--tls-cert",
            ) from error


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raise InvalidOption where it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as on_failure:
            listening = on_failure.enter_context(socket.socket(family, kind, protocol))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(512)
            on_failure.pop_all()
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {host}:{port}: {error.strerror or error}",
            remedy="Choose another --port (0 picks a free one), or another --host.",
        ) from error
    return listening


def is_loopback(listening: socket.socket) -> bool:
    """Return whether only this machine reaches the socket."""
    address = ipaddress.ip_address(str(listening.getsockname()[0]).partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback

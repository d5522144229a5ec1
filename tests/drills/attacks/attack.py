"""One attack: what it sends, and the refusals that it may get."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.drills.attacks.wire import Address, Answer, exchange, request

__all__ = ["ALSO_SLOWED", "Attack", "Outcome", "Target", "sending"]

Outcome = tuple[int, str]
"""Status and problem code; status 0 is a connection closed without an answer."""

ALSO_SLOWED = (429, "rate-limited")
"""What a refused key gets instead of 401 after twenty in a minute."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server: where it is, secrets of keys by what they may, and ids of what another key has."""

    address: Address
    keys: dict[str, str]
    theirs: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, *headers: str, key: str = "attacker", body: bytes | None = None) -> Answer:
        """The answer to one well-formed request."""
        return self.send(request(method, path, self.keys[key], *headers, body=body), method)[0]

    def send(self, data: bytes | Iterable[bytes], method: str = "GET") -> list[Answer]:
        """The answers to whatever this is."""
        return exchange(self.address, data, method)


@dataclass(frozen=True, slots=True)
class Attack:
    """`send` gives the answers that are judged: each must be one of `refusals`."""

    kind: str
    name: str
    send: Callable[[Target], Iterable[Answer]]
    refusals: frozenset[Outcome]


def sending(
    kind: str, name: str, refusals: Iterable[Outcome], data: Callable[[Target], bytes | Iterable[bytes]]
) -> Attack:
    """The attack that sends these bytes on a connection of their own."""
    return Attack(kind, name, lambda target: target.send(data(target)), frozenset(refusals))

"""Devices that tunings are measured on through TVM's RPC: the operator names the tracker, and what is there."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Any

from relaxc.service.config import settings
from relaxc.service.errors import InvalidOption, InvalidTarget, ServerUnreachable
from relaxc.service.lowering.target import resolve
from relaxc.service.request import TargetSpec

__all__ = ["Device", "devices_of_settings", "ports_of_settings", "tracker_of_settings"]

_KEY = re.compile(r"[\w.-]{1,64}")
_SERVER_PORTS = range(9090, 9200)
"""Where TVM's RPC servers listen unless they are told otherwise, and ours."""


@dataclass(frozen=True, slots=True)
class Device:
    """Phones or boards that are alike: registered at the tracker under `key`, they run code for `target`."""

    key: str
    target: TargetSpec

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values; `from_dict` is its inverse."""
        return {"key": self.key, "target": self.target.to_dict()}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Device:
        """Return the device that `to_dict` described."""
        return Device(data["key"], TargetSpec.from_dict(data["target"]))


def devices_of_settings() -> tuple[Device, ...]:
    """Return what RELAXC_RPC_DEVICES names. Raise InvalidOption, also for some without a tracker."""
    words = [word.strip() for word in settings().rpc_devices.split(",") if word.strip()]
    if words and not settings().rpc_tracker:
        raise InvalidOption("RELAXC_RPC_DEVICES is set, and RELAXC_RPC_TRACKER is not", option="RELAXC_RPC_TRACKER")
    return tuple(_device(word) for word in words)


def tracker_of_settings() -> str:
    """Return HOST:PORT of the tracker, its host as an address: a job cannot ask for names. Raise ServerUnreachable."""
    host, _, port = settings().rpc_tracker.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise ServerUnreachable(f"the RPC tracker {settings().rpc_tracker}: {error}") from error
    return f"[{found}]:{port}" if ":" in str(found) else f"{found}:{port}"


def ports_of_settings() -> tuple[int, ...]:
    """Return the ports that a tuning for a device may connect to: the tracker's and the servers'."""
    return (int(settings().rpc_tracker.rpartition(":")[2]), *_SERVER_PORTS)


def _device(word: str) -> Device:
    key, equals, target = word.partition("=")
    if not equals or not _KEY.fullmatch(key):
        raise InvalidOption(f"RELAXC_RPC_DEVICES has {word!r}, which is not KEY=TARGET", option="RELAXC_RPC_DEVICES")
    try:
        return Device(key, resolve(target).single("a device"))
    except InvalidTarget as error:
        raise InvalidOption(f"RELAXC_RPC_DEVICES: {error.message}", option="RELAXC_RPC_DEVICES") from error

"""The wire between client and server breaks as wires do: whoever sends hears of it."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from tests.client.wire import Wire
from tests.waiting import PATIENCE_S


def test_a_cut_ends_a_sender_that_nobody_reads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, Wire(f"http://127.0.0.1:{deaf.getsockname()[1]}") as wire:
        port = int(wire.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as sender:
            sender.settimeout(0.5)
            with suppress(TimeoutError):
                while True:  # until each buffer on the way is full
                    sender.send(bytes(1 << 20))
            wire.cut()
            sender.settimeout(PATIENCE_S)
            with pytest.raises(ConnectionError):
                sender.sendall(bytes(64 << 20))

"""A load generator on raw sockets, in a process of its own: `python -m benchmarks.service.load KIND URL JSON`.

It does as little as it can for each answer, because it shares the machine with the server: requests are built once, and
of an answer only the status, the length and the bytes are looked at. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from relaxc.service.client.sse import Parser

__all__ = ["download", "gets", "listen"]

_BUFFER_BYTES = 1 << 20


async def gets(host: str, port: int, *, path: str, headers: dict[str, str], connections: int, seconds: float) -> Any:
    """GETs of one path on kept connections, each of which waits for its answer: count, seconds, latencies."""
    request = _request(host, path, headers)
    latencies: list[float] = []
    statuses: dict[int, int] = {}
    until = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while time.perf_counter() < until:
            begun = time.perf_counter()
            writer.write(request)
            status, size = await _head(reader)
            if size:
                await reader.readexactly(size)
            latencies.append(time.perf_counter() - begun)
            statuses[status] = statuses.get(status, 0) + 1
        writer.close()
        await writer.wait_closed()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return {"seconds": time.perf_counter() - begun, "statuses": statuses, **_quantiles(latencies)}


async def download(host: str, port: int, *, path: str, times: int, connections: int) -> Any:
    """Whole downloads of one path, `times` in each of so many threads: bytes per second of each."""
    begun = time.perf_counter()
    several = await asyncio.gather(
        *(asyncio.to_thread(_downloads, host, port, path, times) for _ in range(connections))
    )
    seconds = time.perf_counter() - begun
    return {"rates": sorted(rate for rates in several for rate in rates), "seconds": seconds}


def _downloads(host: str, port: int, path: str, times: int) -> list[float]:
    rates, buffer = [], bytearray(_BUFFER_BYTES)
    for _ in range(times):
        with socket.create_connection((host, port)) as connection:
            begun = time.perf_counter()
            connection.sendall(_request(host, path, {"Connection": "close"}))
            head = b""
            while (end := head.find(b"\r\n\r\n")) < 0:
                head += connection.recv(1 << 16)
            status, size = _parsed(head[: end + 4])
            assert status == 200 and size, head
            left = size - (len(head) - end - 4)
            while left:
                got = connection.recv_into(buffer)
                assert got, f"{left} bytes are missing"
                left -= got
            rates.append(size / (time.perf_counter() - begun))
    return rates


async def listen(host: str, port: int, *, path: str, listeners: int) -> Any:
    """Listeners of one job's events until `done`: what each got, and how long after its time of happening."""
    request = _request(host, path, {"Accept": "text/event-stream"})
    connected = 0
    latencies: list[float] = []
    ids: list[list[str]] = []

    async def one() -> None:
        nonlocal connected
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        status, _ = await _head(reader)
        assert status == 200, status
        connected += 1
        if connected == listeners:
            print("connected", flush=True)
        mine: list[str] = []
        ids.append(mine)
        parser, dechunk = Parser(), _Dechunk()
        while True:
            chunk = await reader.read(1 << 16)
            now = time.time()
            assert chunk, "the stream ended before the job"
            for message in parser.feed(dechunk(chunk)):
                mine.append(message.id)
                if message.event == "done":
                    writer.close()
                    return
                latencies.append(now - datetime.fromisoformat(json.loads(message.data)["time"]).timestamp())

    await asyncio.gather(*(one() for _ in range(listeners)))
    told = {"events": len(ids[0]), "equal": all(mine == ids[0] for mine in ids)}
    return told | _quantiles(latencies)


class _Dechunk:
    """The content of a chunked body (RFC 9112, 7.1), in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def __call__(self, data: bytes) -> bytes:
        data, found = self._rest + data, b""
        while (end := data.find(b"\r\n")) >= 0:
            size = int(data[:end], 16)
            if len(data) < end + 2 + size + 2:
                break
            found += data[end + 2 : end + 2 + size]
            data = data[end + 2 + size + 2 :]
        self._rest = data
        return found


def _request(host: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


async def _head(reader: asyncio.StreamReader) -> tuple[int, int | None]:
    return _parsed(await reader.readuntil(b"\r\n\r\n"))


def _parsed(head: bytes) -> tuple[int, int | None]:
    """Status and Content-Length of an answer."""
    head = head.lower()
    at = head.find(b"\r\ncontent-length:")
    return int(head[9:12]), None if at < 0 else int(head[at + 17 : head.index(b"\r\n", at + 2)])


def _quantiles(values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    p50, p99 = (ordered[int(part * len(ordered))] for part in (0.5, 0.99))
    return {"count": len(ordered), "p50": p50, "p99": p99, "max": ordered[-1]}


_KINDS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {"gets": gets, "download": download, "listen": listen}

if __name__ == "__main__":
    kind, url, arguments = sys.argv[1:]
    address = urlsplit(url)
    print(json.dumps(asyncio.run(_KINDS[kind](address.hostname, address.port, **json.loads(arguments)))))

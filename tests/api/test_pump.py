"""Bodies on their way to a slow disk hold up nobody who does not write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from anyio import to_thread

from relaxc.service.api.disk import WRITERS
from relaxc.service.api.uploads import pump
from tests.waiting import PATIENCE_S


async def body() -> AsyncIterator[bytes]:
    yield b"x" * (2 << 20)


def test_slow_writes_hold_up_no_other_call() -> None:
    """A hundred uploads write to a disk that has stopped: who asks for events or for a job is answered."""
    go, writing = threading.Event(), threading.Semaphore(0)

    def write(_: bytes) -> None:
        writing.release()
        assert go.wait(PATIENCE_S)

    async def serve() -> None:
        uploads = [asyncio.create_task(pump(body(), write)) for _ in range(100)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(int(WRITERS.total_tokens)):
                    while not writing.acquire(blocking=False):
                        await asyncio.sleep(0.01)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), PATIENCE_S) == 1
            assert await asyncio.wait_for(to_thread.run_sync(lambda: 2), PATIENCE_S) == 2
            assert not any(upload.done() for upload in uploads)
        finally:
            go.set()
            await asyncio.gather(*uploads)

    asyncio.run(serve())


def test_a_body_is_written_in_order() -> None:
    found: list[bytes] = []

    async def chunks() -> AsyncIterator[bytes]:
        for number in range(50):
            yield bytes([number]) * (100 << 10)

    asyncio.run(pump(chunks(), found.append))
    assert b"".join(found) == b"".join(bytes([number]) * (100 << 10) for number in range(50))

"""The runner of candidates for a GPU: whatever a kernel breaks there, this process ends with it."""

from __future__ import annotations

import faulthandler
import fcntl
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from relaxc.service.errors import in_one_line
from relaxc.service.tuning.measure.messages import Listen, answer_all
from relaxc.service.tuning.measure.outcome import MeasureLimits
from relaxc.service.tuning.measure.trials import Trials

__all__ = ["Alone", "serve"]

_FAULT = 70


def serve(connection: Connection, config: dict[str, Any]) -> None:
    """Answer every request until the tuner hangs up, on the device that `open_device` of the module `device` opens.

    A candidate that faults leaves a device context in which nothing works any more, and one that hangs cannot be
    stopped: both end the process, without an answer, and the next request gets another.
    """
    limits = MeasureLimits(**config["limits"])
    alone = Alone(config["lock"], limits.kernel_s)
    try:
        device = importlib.import_module(config["device"]).open_device(alone)
        trials = Trials(device, limits)
        answer_all(connection, lambda asked: device.listen() if isinstance(asked, Listen) else trials.answer(asked))
    except Exception as error:  # noqa: BLE001  # TVM and the driver raise whatever they like
        print(in_one_line(error), file=sys.stderr, flush=True)  # the last words, which the outcome has
        os._exit(_FAULT)  # nothing waits for the device any more


class Alone:
    """Lets one process at a time use the device; one whose kernels do not end in time is ended."""

    def __init__(self, lock: str, limit_s: float) -> None:
        """`lock` is a file that all tunings on the device share; without one nobody waits for another."""
        self._file = _opened(lock)
        self._limit_s = limit_s

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Wait for the device, and hold it."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        # Its thread needs no interpreter, which a call that waits for a kernel may hold.
        faulthandler.dump_traceback_later(self._limit_s, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def _opened(lock: str) -> int | None:
    """The file, or None where it cannot be opened: another user's, or not within the job's sandbox."""
    try:
        Path(lock).parent.mkdir(parents=True, exist_ok=True)
        return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None

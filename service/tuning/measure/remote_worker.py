"""A remote runner: uploads candidates to a server of TVM's RPC, a session for each request, and times them there."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tvm
from tvm import rpc

from relaxc.service.errors import in_one_line
from relaxc.service.lowering.build import KERNEL
from relaxc.service.runtime.tensors import Array
from relaxc.service.tuning.measure.messages import Compare, Listen, Ran, Request, answer_all
from relaxc.service.tuning.measure.outcome import MeasureLimits, RpcOptions
from relaxc.service.tuning.measure.trials import Trials, Turns

__all__ = ["serve"]

_AFFINITY_BIG = 1  # threading::ThreadGroup::AffinityMode::kBig, the default
_REACH_S = 10.0
_FLUSH = "cache_flush_cpu_non_first_arg"
"""TVM's own, which every server has: evicts all arguments but the first from every cache."""

_OVER = "RPCSessionTimeoutError"
"""What a server says when it ends a session because its time is over."""


def serve(connection: Connection, config: dict[str, Any]) -> None:
    """Answer every request until the tuner hangs up; a Listen by the number of servers, or why it is not known."""
    servers = _Servers(RpcOptions(**config["rpc"]), config["threads"])
    trials = Trials(servers, MeasureLimits(**config["limits"]))
    answer_all(connection, lambda asked: _count(servers) if isinstance(asked, Listen) else _answer(trials, asked))


def _count(servers: _Servers) -> int | str:
    """How many servers there are, or why that is not known."""
    try:
        return servers.count()
    except (OSError, RuntimeError) as error:
        return in_one_line(error)


def _answer(trials: Trials, request: Request) -> Ran | list[Ran]:
    """What came of a request. A lost connection, a crash there and the end of a session all come as exceptions."""
    try:
        return trials.answer(request)
    except Exception as error:  # noqa: BLE001  # TVM raises whatever the other side or the socket said
        lost = Ran("hung" if _OVER in str(error) else "unreachable", detail=in_one_line(error))
    finally:
        trials.forget()  # a server serves nobody else while a tensor of ours lives there
        gc.collect()
    return [lost] * len(request.libraries) if isinstance(request, Compare) else lost


class _Servers:
    """The servers of one key at one tracker; see `trials.Device`."""

    def __init__(self, options: RpcOptions, threads: int) -> None:
        self._options, self._threads = options, threads

    def count(self) -> int:
        """Return how many servers the tracker has under the key. Raise OSError where there is no tracker."""
        socket.create_connection((self._options.host, self._options.port), _REACH_S).close()  # TVM tries for a minute
        with closing(rpc.connect_tracker(self._options.host, self._options.port)) as tracker:
            return self._registered(tracker)

    @contextmanager
    def place(self) -> Iterator[_Session]:
        """Return a session with the next server that is free."""
        with closing(rpc.connect_tracker(self._options.host, self._options.port)) as tracker:
            if not self._registered(tracker):  # a request would wait for one for ever
                raise RuntimeError(f"no server is registered under the key {self._options.key}")
            session = tracker.request(self._options.key, session_timeout=self._options.session_s, max_retry=1)
        yield _Session(session, self._threads)

    def _registered(self, tracker: Any) -> int:
        return sum(row["key"] == f"server:{self._options.key}" for row in tracker.summary()["server_info"])


class _Session:
    """A session with one server; see `trials.Place`."""

    def __init__(self, session: Any, threads: int) -> None:
        self._session = session
        self._device = session.cpu()
        session.get_function("runtime.config_threadpool")(_AFFINITY_BIG, threads)

    def load(self, library: str) -> Callable[..., Any]:
        """See `trials.Place`."""
        self._session.upload(library)
        module = self._session.load_module(Path(library).name)
        kernel = module[KERNEL]
        return _Kernel(kernel, module.time_evaluator(KERNEL, self._device, number=1, repeat=1, f_preproc=_FLUSH))

    def put(self, value: Array | int) -> Any:
        """See `trials.Place`."""
        return value if isinstance(value, int) else tvm.runtime.tensor(value, self._device)

    def lists(self, values: Sequence[Array | int], weights: Sequence[int], weight_bytes: int) -> list[list[Any]]:
        """See `trials.Place`. One list: all that it has is evicted from every cache before each call."""
        return [[self.put(value) for value in values]]

    def awaken(self, seconds: float) -> None:
        """See `trials.Place`. Nothing: a server has no kernel but the candidate, whose first runs do not count."""

    def timer(self, kernel: Callable[..., Any], turns: Turns) -> Callable[[], float]:
        """See `trials.Place`."""
        assert isinstance(kernel, _Kernel)
        return lambda: float(kernel.time(*turns.next()).mean)

    def alone(self) -> AbstractContextManager[None]:
        """See `trials.Place`. A server serves one session at a time."""
        return nullcontext()


class _Kernel:
    """A kernel there, and TVM's timer of it."""

    def __init__(self, kernel: Callable[..., Any], time: Callable[..., Any]) -> None:
        self._kernel, self.time = kernel, time

    def __call__(self, *arguments: Any) -> None:
        self._kernel(*arguments)

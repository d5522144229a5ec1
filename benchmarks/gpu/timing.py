"""Times on the GPU: calls in a CUDA graph over rotating inputs, or calls one after the other, in turns."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["in_turns", "kernels_of", "milliseconds_in_turns"]

_ROTATED_BYTES = 120 << 20
"""Inputs rotate over more than twice the L2 cache."""
_GRAPH_US = 3000.0
"""About as long as one replay takes."""

Calls = Sequence[Callable[[], Any]]


def copies_for(size_bytes: float) -> int:
    """Return how many sets of inputs of that size do not fit into the cache together."""
    return max(2, min(32, int(_ROTATED_BYTES // max(size_bytes, 1)) + 1))


def in_turns(calls: Mapping[str, Calls], rounds: int = 11) -> dict[str, float]:
    """Return the median microseconds of a call for each name, of CUDA graphs that are replayed in turns."""
    first = next(iter(calls.values()))
    once = _Graph(first, len(first))
    once.microseconds()
    count = max(len(first), min(100, int(_GRAPH_US / max(once.microseconds(), 0.5))))
    graphs = {name: _Graph(each, count) for name, each in calls.items()}
    for graph in graphs.values():
        graph.microseconds()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name].append(graph.microseconds())
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


class _Graph:
    """Calls in one CUDA graph, `count` of them, taken in turns."""

    def __init__(self, calls: Calls, count: int) -> None:
        import torch

        self.count = count
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls[:2]:
                call()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for index in range(count):
                calls[index % len(calls)]()
        self.start, self.end = torch.cuda.Event(True), torch.cuda.Event(True)

    def microseconds(self) -> float:
        """Return the time of one replay, a call."""
        self.start.record()
        self.graph.replay()
        self.end.record()
        self.end.synchronize()
        return float(self.start.elapsed_time(self.end)) * 1e3 / self.count


def milliseconds_in_turns(calls: Mapping[str, Callable[[], Any]], rounds: int = 15) -> dict[str, Any]:
    """Return median milliseconds of a call for each name, and under `spread` its 10th and 90th percentiles.

    A turn is up to 20 calls one after the other, fewer of slow ones, the last one waited for.
    """
    import torch

    def turn(call: Callable[[], Any], count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count * 1e3

    counts = {name: max(2, min(20, int(100 / max(turn(call, 2), 0.01)))) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(rounds + 2):
        for name, call in calls.items():
            found = turn(call, counts[name])
            if index >= 2:
                times[name].append(found)
    median = {name: round(statistics.median(values), 4) for name, values in times.items()}
    spread = {
        name: [round(sorted(each)[int(q * (len(each) - 1))], 4) for q in (0.1, 0.9)] for name, each in times.items()
    }
    return {"ms": median, "spread": spread}


def kernels_of(call: Callable[[], Any], calls: int = 5, most: int = 24) -> list[tuple[str, float, float]]:
    """Return each kernel's name, launches a call and microseconds a call, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    launches: Counter[str] = Counter()
    microseconds: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            launches[event.name] += 1
            microseconds[event.name] += event.device_time
    longest = microseconds.most_common(most)
    return [(name, round(launches[name] / calls, 1), round(us / calls, 2)) for name, us in longest]

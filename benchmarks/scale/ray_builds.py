"""How fast nodes of a Ray cluster build candidates: `python -m benchmarks.scale.ray_builds [--builds 40]`.

The same points of one kernel, drawn by a seed, are built by one node and by two, each of them on a core of its own, by
turns. What a candidate costs beside LLVM (a fork, a sandbox, the way there and back) is in it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from relaxc.service.compiler import prepare
from relaxc.service.compiling.stages import Stages
from relaxc.service.jobs.ray.cluster import Cluster
from relaxc.service.jobs.workers.machine import Machine
from relaxc.service.tuner import find_tasks
from relaxc.service.tuning.task import Task
from tests import zoo
from tests.ray_nodes import MACHINE, running_ray

__all__ = ["main", "measured"]

_AT_ONCE = 4
_MEMORY_BYTES = 4 << 30
_LIMIT_S = 120.0


def questions(task: Task, number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Points of a task's space as what a tuning asks for."""
    points = random.Random(seed).sample(list(task.points), number)
    about = {"target": task.target.to_dict(), "rules": [], "memory_bytes": _MEMORY_BYTES, "limit_s": _LIMIT_S}
    build = {"func_json": task.func_json, "group_json": task.group_json, "operator": dict(task.operator)}
    return [{**about, **build, "how": asdict(task.how(dict(point)))} for point in points]


def built_in(cluster: Cluster, kinds: list[str], asked: list[dict[str, Any]]) -> float:
    """The seconds in which nodes of these kinds build all of them, two at a time for each node."""
    import ray

    from relaxc.service.jobs.ray.cluster import _build

    remotes = [ray.remote(num_cpus=0, max_retries=0, resources={kind: 0.4})(_build) for kind in kinds]
    waiting, under_way, start = list(asked), dict[Any, Any](), time.monotonic()
    while waiting or under_way:
        for remote in remotes:
            while waiting and sum(each is remote for each in under_way.values()) < 2:
                under_way[remote.remote(waiting.pop())] = remote
        done, _ = ray.wait(list(under_way))
        for each in done:
            found = ray.get(each)
            assert found["kind"] in ("built", "refused"), found
            del under_way[each]
    return time.monotonic() - start


def measured(builds: int, rounds: int) -> dict[str, Any]:
    """Builds a minute of one node and of two."""
    request = prepare(zoo.export("resnet18", "onnx"))
    tasks = find_tasks(request, Stages(lambda event: None)).tasks
    asked = questions(max(tasks, key=lambda task: len(task.space)), builds)
    here = replace(Machine.here(), cores=1)
    first, second = sorted(os.sched_getaffinity(0))[:2]
    nodes = {name: replace(here, title=name, memory_bytes=1, tools=(name,)) for name in ("one", "two")}
    with tempfile.TemporaryDirectory(prefix="relaxc-ray-") as folder, running_ray(Path(folder), {}) as ray_nodes:
        ray_nodes.start("one", nodes["one"], on=first)
        ray_nodes.start("two", nodes["two"], on=second)
        cluster = Cluster(ray_nodes.address, MACHINE)
        kinds = list(cluster.kinds())
        built_in(cluster, kinds, asked[: 2 * _AT_ONCE])  # their zygotes import for seconds
        times: dict[str, list[float]] = {"one": [], "two": []}
        for number in range(rounds):
            times["one"].append(built_in(cluster, [kinds[number % 2]], asked))
            times["two"].append(built_in(cluster, kinds, asked))
        cluster.close()
    paces = {name: round(60 * builds / statistics.median(taken), 1) for name, taken in times.items()}
    return {"builds": builds, "builds a minute": paces, "two over one": round(paces["two"] / paces["one"], 2)}


def main() -> int:
    """Prints what was measured, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if find_spec("ray") is None or len(os.sched_getaffinity(0)) < 2:
        print("this takes ray (pip install 'relaxc[ray]') and two cores", file=sys.stderr)
        return 2
    print(json.dumps(measured(options.builds, options.rounds), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

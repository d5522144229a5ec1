"""The tasks of the models that are timed on a GPU, found where none need be, as one file that is carried to one."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from relaxc.service.request import CompileOptions, Precision, TargetSpec
from relaxc.service.tuning.task import Named, Task

__all__ = ["TUNED", "Wanted", "collect", "read_tasks"]

FILE = "tasks.json.gz"
_LAUNCH_S = 3e-6
"""What a kernel takes however little it does."""

TUNED = (
    ("resnet50", 32), ("resnet50", 1), ("bert", 32), ("bert", 1), ("gpt2", 32), ("vit", 32), ("mobilenet_v2", 32),
    ("unet_block", 32), ("llama", 32), ("bert_unmasked:int8", 32), ("bert_unmasked:int8", 1),
)  # fmt: skip
"""Models and batches, the most important first; `:int8` as ONNX Runtime quantizes them."""
_LAYERS = 2
"""Of a quantized model: the others have the same tasks."""


@dataclass(frozen=True)
class Wanted:
    """A task, and the part of each model's estimated time that its calls are."""

    task: Task
    shares: Mapping[str, float]

    @property
    def importance(self) -> float:
        """The sum over the models: each counts the same, whatever it takes."""
        return sum(self.shares.values())


def collect(folder: Path, models: Iterable[tuple[str, int]] = TUNED) -> list[Wanted]:
    """Find the tasks of each model in a process of its own, and write them into the folder; equal ones once."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[tuple[str, str, str], Wanted] = {}
    for name, batch in models:
        stem = f"{name.replace(':', '_')}_b{batch}"
        file = folder / f"{stem}.{FILE}"
        if not file.exists():
            command = [sys.executable, "-m", "benchmarks.gpu.tune_tasks", str(file), name, str(batch)]
            subprocess.run(command, check=True)
        tasks = _read(file)
        costs = [task.weight * (_limit_s(task) + _LAUNCH_S) for task in tasks]
        for task, cost in zip(tasks, costs, strict=True):
            key = task.workload, task.dtype, task.shapes
            before = found.get(key, Wanted(task, {}))
            found[key] = Wanted(before.task, {**before.shares, stem: cost / sum(costs)})
    wanted = sorted(found.values(), key=lambda one: (-one.importance, one.task.workload))
    rows = [{"task": asdict(one.task), "shares": one.shares} for one in wanted]
    with gzip.open(folder / FILE, "wt") as out:
        json.dump(rows, out)
    return wanted


def read_tasks(folder: Path) -> list[Wanted]:
    """Return what `collect` has written, the most important first; a task's weight is for all models together.

    What a row has as `seconds`, from an earlier run, goes before the estimate of what the task takes.
    """
    with gzip.open(folder / FILE, "rt") as file:
        rows = json.load(file)
    found = []
    for row in rows:
        task, shares = _task(row["task"]), row["shares"]
        seconds = row.get("seconds") or _limit_s(task) + _LAUNCH_S
        found.append(Wanted(replace(task, weight=max(1, round(0.1 * sum(shares.values()) / seconds))), shares))
    return found


def _read(file: Path) -> list[Task]:
    with gzip.open(file, "rt") as text:
        return [_task(row) for row in json.load(text)]


def _task(data: dict[str, Any]) -> Task:
    """The inverse of `asdict`, for tasks of templates."""
    tuples = {"weight_operands", "points", "traces"}
    values = {field.name: data[field.name] for field in fields(Task)}
    values |= {name: tuple(values[name]) for name in tuples}
    values["target"] = TargetSpec.from_dict(data["target"])
    values["templates"] = tuple(
        Named(one["rule"], one["version"], tuple(one["parameters"])) for one in data["templates"]
    )
    values["space"] = {name: tuple(choices) for name, choices in data["space"].items()}
    return Task(**values)


def _limit_s(task: Task) -> float:
    from relaxc.schedules.hardware import GPUS

    return GPUS["sm_90"].least_seconds(task.flops, task.bytes, task.dtype.partition("+")[0])


def _of_model(file: Path, name: str, batch: int) -> None:
    """What a process of `collect` does."""
    from relaxc.service.compiler import prepare
    from relaxc.service.compiling.stages import Stages
    from relaxc.service.tuner import find_tasks

    with TemporaryDirectory() as scratch:
        exported, options = _exported(Path(scratch), name, batch)
        found = find_tasks(prepare(exported, target="cuda-sm90", options=options), Stages(lambda event: None))
    for one in found.untunable:
        print(f"{name}_b{batch}: not a task: {one.name} ({one.rule}): {one.reason}", file=sys.stderr)
    with gzip.open(file, "wt") as out:
        json.dump([asdict(task) for task in found.tasks], out)


def _exported(folder: Path, name: str, batch: int) -> tuple[Path, CompileOptions]:
    import torch

    from benchmarks.gpu.models import model_of
    from benchmarks.gpu.quantized_child import quantize

    plain, _, precision = name.partition(":")
    module, inputs = model_of(plain, batch, _LAYERS if precision else None)
    if precision:
        quantize(module, inputs, folder / "model.onnx")
        return folder / "model.onnx", CompileOptions(precision=Precision.FP16)
    with torch.no_grad():
        torch.export.save(torch.export.export(module, inputs, strict=False), folder / "model.pt2")
    return folder / "model.pt2", CompileOptions()


if __name__ == "__main__":
    _of_model(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

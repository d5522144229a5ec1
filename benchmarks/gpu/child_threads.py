"""Sessions of one model in threads of one process, on one GPU: each gives what it gives alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.child_model import load_model, results_of
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.models import model_of, other_inputs
from benchmarks.gpu.weights import follow

__all__ = ["measure_threads"]

_CALLS = 25


def measure_threads(folder: Path, entry: Entry) -> dict[str, Any]:
    """Return whether every call of every thread gave the bits that the same inputs give when nothing else runs."""
    import torch

    case = entry.case
    library, stored, described = (folder / name for name in entry.files)
    module = model_of(case["model"], case["batch"])[0].cuda()
    weights = follow(json.loads(described.read_text())["weights"], np.load(stored), module)
    given = [tuple(x.cuda() for x in other_inputs(case["model"], case["batch"], i)) for i in range(case["sessions"])]
    alone = load_model(library, weights, given[0])[0]
    want = [results_of(alone(*inputs)) for inputs in given]
    sessions = [load_model(library, weights, inputs)[0] for inputs in given]
    wrong: list[str] = []

    def work(index: int) -> None:
        try:
            for call in range(_CALLS):
                got = results_of(sessions[index](*given[index]))
                if not all(torch.equal(a, b) for a, b in zip(got, want[index], strict=True)):
                    wrong.append(f"thread {index}, call {call}")
        except RuntimeError as error:
            wrong.append(f"thread {index}: {error}"[:300])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"right": not wrong, "wrong": wrong[:3], "calls": _CALLS * len(sessions)}

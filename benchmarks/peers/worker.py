"""The process of one runtime: `prepare` compiles and ends; `serve` loads, and then runs when it is told to.

Commands come as JSON lines on stdin, answers go as JSON lines to what was stdout; the runtime's own output goes to
stderr. At the end of stdin it ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.peers import files, memory
from benchmarks.peers.cases import Case
from benchmarks.peers.runtimes import Loaded, runtime


def _answers() -> TextIO:
    """Stdout for answers; what libraries print goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", buffering=1)


def _timed(run: Callable[[], Any], warm: int, runs: int) -> list[float]:
    """Milliseconds of each of `runs` calls, after `warm` others."""
    for _ in range(warm):
        run()
    times = []
    for _ in range(runs):
        start = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return times


def _answer(loaded: Loaded, command: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "run":
            return {"ms": _timed(loaded.run, command["warm"], command["runs"])}
        case "outputs":
            np.savez(command["path"], *loaded.arrays(loaded.run()))
            return {}
        case "memory":
            return {"peak_bytes": memory.peak_bytes(), "cpu_s": time.process_time()}
    raise ValueError(f"there is no command {command['do']!r}")


def _prepare(name: str, case: Case, folder: Path, threads: int) -> dict[str, Any]:
    return asdict(runtime(name).prepare(case, folder, threads))


def _serve(name: str, case: Case, folder: Path, threads: int, answers: TextIO) -> None:
    module = runtime(name)
    start = time.perf_counter()
    loaded = module.load(case, folder, threads)
    loaded.run()
    ready = {
        "version": module.version(),
        "load_s": round(time.perf_counter() - start, 3),
        "load_peak_bytes": memory.peak_bytes(),
        "forgets_peak": memory.forget_peak(),
    }
    gc.collect()
    gc.disable()
    answers.write(json.dumps(ready) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_answer(loaded, json.loads(line))) + "\n")


def main() -> int:
    """`worker (export | prepare | serve) RUNTIME CASE FOLDER THREADS`, CASE as JSON."""
    task, name, text, place, threads = sys.argv[1:]
    answers, case, folder = _answers(), Case(**json.loads(text)), Path(place)
    if task == "export":
        files.export(case, folder)
        answers.write("{}\n")
    elif task == "prepare":
        answers.write(json.dumps(_prepare(name, case, folder, int(threads))) + "\n")
    else:
        _serve(name, case, folder, int(threads), answers)
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

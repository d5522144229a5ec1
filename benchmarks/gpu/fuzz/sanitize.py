"""Random kernels of one template under compute-sanitizer: nothing else runs on the device, each tensor by itself."""

from __future__ import annotations

import json
import queue
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.fuzz.compile_child import build_batch, kernel_of, scheduled, work_of
from benchmarks.gpu.fuzz.draw import SUITES, Drawn, draw
from benchmarks.gpu.fuzz.run import CHECKER, write_row
from benchmarks.gpu.manifest import RESULTS, Entry, finished, read_results
from benchmarks.gpu.processes import Child
from relaxc.service.errors import ToolMissing

__all__ = ["FAMILIES", "chosen", "sanitize"]

_MOST_WORK = 1e8
"""Operations, and bytes read and written: a sanitizer takes a hundred times as long."""
FAMILIES = {
    "cuda.attention_sm90": "attention", "cuda.attention_sm80": "attention",
    "cuda.decoding_sm90": "decoding", "cuda.gemm_sm90": "gemm",
    "cuda.gemm_sm80": "gemm_sm80",
    "cuda.conv2d_sm90": "conv", "cuda.conv2d_sm80": "conv", "cuda.lines_sm90": "conv",
    "cuda.windows": "conv", "cuda.spread": "spread",
    "cuda.rows": "rows", "cuda.group_norm": "groups", "cuda.transposed": "moves", "cuda.elementwise": "moves",
    "cuda.reductions": "reduced",
}  # fmt: skip
"""Where the cases of a template are drawn."""


def sanitize(
    folder: Path, *, seed: int, tools: Sequence[str], rules: Sequence[str], count: int, budget_s: float, workers: int
) -> list[dict[str, Any]]:
    """Run `count` kernels of each rule under each tool, all tools at once; return a row for each rule and tool.

    What the folder's results have is not run again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("compute-sanitizer") is None:
        raise ToolMissing("compute-sanitizer is not installed", tool="compute-sanitizer")
    deadline, guard = time.monotonic() + budget_s, threading.Lock()
    rows = [
        {"id": f"sanitizer/{tool}/{rule}/{seed}/{count}", "status": "done", "tool": tool, "rule": rule}
        for rule in rules
        for tool in tools
    ]
    done = finished(read_results(folder))
    left = [row for row in rows if row["id"] not in done]
    with TemporaryDirectory() as built:
        wanted = list(dict.fromkeys(row["rule"] for row in left))
        kernels = _built(wanted, seed, count, Path(built), workers) if wanted else {}
        threads = [
            threading.Thread(target=_watch, args=(folder, row, kernels[row["rule"]], deadline, guard)) for row in left
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    done = finished(read_results(folder))
    return [done.get(row["id"], {"id": row["id"], "status": "cut"}) for row in rows]


def chosen(rule: str, seed: int, count: int) -> list[Drawn]:
    """Return the first small cases of this seed that the rule takes, half of them at random points of its space.

    `RULE:FAMILY` draws them in that family, as a template of floats multiplies bytes too.
    """
    rule, _, family = rule.partition(":")
    family = family or FAMILIES[rule]
    found: list[Drawn] = []
    for index in range(200 * count):
        drawn = draw(seed, index)
        if len(found) == count:
            break
        small = drawn.family == family and work_of(drawn) <= _MOST_WORK
        if small and scheduled(drawn, SUITES[drawn.suite].prim_func(drawn.case))[0] == rule:
            found.append(drawn)
    return found


def _built(rules: Sequence[str], seed: int, count: int, folder: Path, workers: int) -> dict[str, list[Entry]]:
    """The kernels of each rule, each in a library of its own."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        drawn = dict(zip(rules, pool.map(partial(chosen, seed=seed, count=count), rules), strict=True))
        pairs = [(rule, each) for rule, cases in drawn.items() for each in cases]
        entries = list(pool.map(partial(_build, folder=folder), [each for _, each in pairs]))
    return {rule: [e for (of, _), e in zip(pairs, entries, strict=True) if of == rule] for rule in rules}


def _build(drawn: Drawn, folder: Path) -> Entry:
    ((entry, failed),) = build_batch([kernel_of(drawn, "cuda")], folder, f"kernel_{drawn.index}", "cuda")
    if failed:
        raise RuntimeError(f"{drawn.id} cannot be built: {failed}")
    return entry


def _watch(folder: Path, row: dict[str, Any], entries: Sequence[Entry], deadline: float, guard: threading.Lock) -> None:
    """Add to the row how the tool exits, and what it says where that is not clean; write it."""
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        # Without torch's cache a read beyond a tensor is one beyond an allocation.
        command = ["env", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", "compute-sanitizer", "--tool", row["tool"]]
        child = Child([*command, "--error-exitcode", "9", "--log-file", str(log), *CHECKER, "cuda", "cpu"])
        start = time.monotonic()
        try:
            for entry in entries:
                child.send(json.dumps(asdict(entry)))
            child.close()
            rows, ended = _rows(child, deadline)
            if not ended:
                row |= {"status": "cut", "checked": len(rows), "of": len(entries)}
            else:
                code, wrong = child.process.wait(), [each for each in rows if not each.get("right")]
                clean = code == 0 and not wrong and len(rows) == len(entries) > 0
                row |= {"right": clean, "exit": code, "checked": len(rows), "of": len(entries), "wrong": wrong}
                said = log.read_text() if log.exists() else ""
                row |= {} if clean else {"said": said[:3000] + child.last_words()}
        finally:
            child.end()
    row["seconds"] = round(time.monotonic() - start, 1)
    with guard:
        write_row(folder / RESULTS, row)
        print(json.dumps(row)[:3500], flush=True)


def _rows(child: Child, deadline: float) -> tuple[list[dict[str, Any]], bool]:
    """What it says until it ends, or until the time is over; whether it ended."""
    found: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        try:
            row = child.rows.get(timeout=0.2)
        except queue.Empty:
            continue
        if row is None:
            return found, True
        if "ready" not in row:
            found.append(row)
    return found, False

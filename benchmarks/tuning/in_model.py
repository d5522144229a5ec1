"""Times tuned kernels inside of their model beside the untuned ones, and takes back what does not win there.

    python -m benchmarks.tuning.in_model model.onnx --records tuning_logs --prepare     a busy machine may do this
    python -m benchmarks.tuning.in_model model.onnx --records tuning_logs

A tuner times a kernel by itself, with the weights from where the model has them but not with its neighbours. So the
model is compiled with the records and without, both are profiled in turns in one process, and where a tuned kernel
takes as long as the untuned one or longer, its record is replaced by one of the untuned parameters. Prints a JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import relaxc
from relaxc.service.artifact.compiled import CompiledArtifact
from relaxc.service.records.files import append, read, remove
from relaxc.service.records.record import Record

_LEAST_GAIN = 0.01
_RUNS = 6


def _compiled(model: Path, records: Path | None) -> CompiledArtifact:
    given = () if records is None else (str(records.resolve()),)
    return relaxc.compile(model, options=relaxc.CompileOptions(records=given, default_records=False))


def _times(artifacts: list[CompiledArtifact], rounds: int) -> list[dict[str, float]]:
    """Milliseconds of a run in each workload, for each artifact: medians over the rounds."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    from relaxc.service.runtime import load
    from relaxc.service.runtime.inputs import random_inputs
    from relaxc.service.runtime.profile import profile

    sessions = [load(made.path) for made in artifacts]
    inputs = random_inputs(sessions[0].signature, seed=0)
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in artifacts]
    for _ in range(rounds):
        for made, session, times in zip(artifacts, sessions, found, strict=True):
            workloads = {row["function"]: row["workload"] for row in made.manifest.schedule}
            sums: dict[str, float] = defaultdict(float)
            for row in profile(session, inputs, runs=_RUNS, warmup_s=0.1).functions:
                sums[workloads.get(row.function, row.function)] += row.time_ms
            for workload, time_ms in sums.items():
                times[workload].append(time_ms)
    return [{workload: median(values) for workload, values in times.items()} for times in found]


def _take_back(records: Path, tuned: CompiledArtifact, untuned: CompiledArtifact, rounds: int) -> dict[str, Any]:
    with_ms, without_ms = _times([tuned, untuned], rounds)
    plain = {row["workload"]: row for row in untuned.manifest.schedule}
    by_digest = {record.digest: record for record in read(records)}
    gone, kept = [], []
    for row in {row["workload"]: row for row in tuned.manifest.schedule}.values():
        workload, before = row["workload"], plain[row["workload"]]
        if row["record"] is None or (row["rule"], row["parameters"]) == (before["rule"], before["parameters"]):
            continue
        if with_ms[workload] <= without_ms[workload] * (1 - _LEAST_GAIN):
            kept.append(workload)
            continue
        record = by_digest[row["record"]["digest"]]
        remove(records, [record])
        if before["rule"] == record.rule:
            append(records, [_untuned(record, before["parameters"])])
        gone.append(workload)
    total = {"untuned_ms": sum(without_ms.values()), "tuned_ms": sum(with_ms.values())}
    return {**total, "kept": len(kept), "taken_back": len(gone)}


def _untuned(record: Record, parameters: dict[str, int]) -> Record:
    """The record as if the search had found nothing better than the untuned parameters."""
    seconds = record.untuned_s or record.seconds
    roofline = None if record.roofline is None else round(record.roofline * record.seconds / seconds, 4)
    return replace(record, parameters=parameters, seconds=seconds, untuned_s=seconds, roofline=roofline)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning.in_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--records", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prepare", action="store_true", help="compile only")
    arguments = parser.parse_args(argv)
    tuned, untuned = (_compiled(arguments.model, records) for records in (arguments.records, None))
    if not arguments.prepare:
        found = _take_back(arguments.records, tuned, untuned, arguments.rounds)
        print(json.dumps({"model": str(arguments.model), **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

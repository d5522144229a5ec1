"""Records for tests: one that is complete, and variations of it."""

from __future__ import annotations

from typing import Any

from relaxc.service.records.record import Record, RecordTarget
from relaxc.service.request import TargetSpec

__all__ = ["TARGET", "record", "record_of_row"]

TARGET = RecordTarget("llvm", "x86-64-v4", "avx512")


def record(**fields: Any) -> Record:
    """A record of a GEMM, with these fields instead of its own."""
    usual: dict[str, Any] = {
        "workload": "0123456789abcdef",
        "operator": "fedcba9876543210",
        "target": TARGET,
        "rule": "cpu.matmul",
        "version": 1,
        "dtype": "float32",
        "shapes": "128x768 768x3072 128x3072",
        "parameters": {"rows": 8, "vectors": 2},
        "seconds": 0.0015,
        "untuned_s": 0.0017,
        "roofline": 0.83,
        "flops": 604372992,
        "bytes": 12976128,
        "threads": 2,
        "trials": 64,
        "seed": 0,
        "host": "A CPU",
        "date": "2026-11-21",
        "tvm": "0.27.0.post1",
        "relaxc": "0.1.0",
    }
    return Record(**{**usual, **fields})


def record_of_row(row: dict[str, Any], spec: TargetSpec, **fields: Any) -> Record:
    """A record for the PrimFunc of a schedule report's row: what tuning would have written of these parameters."""
    same = {name: row[name] for name in ("workload", "operator", "rule", "version", "dtype", "shapes", "parameters")}
    return record(**{**same, "target": RecordTarget.of(spec), "threads": spec.cores, **fields})

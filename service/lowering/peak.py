"""A GPU's peak from its hardware row, for the manifest of what is compiled for it."""

from __future__ import annotations

from typing import Any

from relaxc.service.lowering.target import to_tvm
from relaxc.service.request import TargetSpec

__all__ = ["peak_of"]


def peak_of(spec: TargetSpec) -> dict[str, Any] | None:
    """Return what `relaxc.service.runtime.gpu_peak.GpuPeak.from_dict` takes; None for a CPU, which is measured."""
    if spec.kind != "cuda":
        return None
    from relaxc.schedules.hardware import gpu_of

    row = gpu_of(to_tvm(spec))
    rates = {dot.operands[0]: row.gflops(dot.operands[0]) for dot in row.dots}
    near, far = row.l2_bytes_per_cycle * row.sms * row.clock_hz / 1e9, row.memory_bytes_per_second / 1e9
    levels = [
        {"name": name, "size_bytes": size, "read_gbps": round(rate, 1), "copy_gbps": round(rate, 1)}
        for name, size, rate in (("L2", row.l2_bytes, near), ("memory", None, far))
    ]
    return {
        "machine": row.name,
        "gflops": rates["float16"],
        "by_dtype": rates,
        "levels": levels,
        "source": "data sheet",
    }

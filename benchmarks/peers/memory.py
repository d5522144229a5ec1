"""Resident memory of this process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["forget_peak", "parse_status", "peak_bytes", "resident_bytes"]

_FORGET_PEAK = "5"  # proc_pid_clear_refs(5): sets VmHWM to the current resident size


def parse_status(text: str, field: str) -> int:
    """The bytes of a field of /proc/PID/status that is in kB; 0 where it is not there."""
    found = re.search(rf"^{field}:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def _status() -> str:
    return Path("/proc/self/status").read_text()


def peak_bytes() -> int:
    """The largest resident size since the start, or since `forget_peak`; mapped files that were read count."""
    return parse_status(_status(), "VmHWM")


def resident_bytes() -> int:
    """The resident size now."""
    return parse_status(_status(), "VmRSS")


def forget_peak() -> bool:
    """Starts the peak anew; False where the kernel does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
    except OSError:
        return False
    return True

"""What a running process executes: the share of AVX-512 among the vector instructions that a sampler meets.

The instruction at each sampled address is read from the process's own memory, so that code made at run time is seen.
In 64-bit code a first byte 0x62 is EVEX, which AVX2 has not, and 0xC4 or 0xC5 are VEX.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

__all__ = ["MOST_AVX512", "avx512_share", "encoding", "keeps_to_avx2"]

MOST_AVX512 = 0.05
"""The share of AVX-512 over which a process is not kept to AVX2: a kernel or two that ask the processor are below."""

_USER_BITS = 47
_STARTS_S = 0.3
_STOPS_S = 30


def encoding(code: bytes) -> str:
    """Return `evex`, `vex` or `other` for the instruction that `code` begins with."""
    return {0x62: "evex", 0xC4: "vex", 0xC5: "vex"}.get(code[0], "other") if code else "other"


def keeps_to_avx2(share: float | None) -> bool:
    """Return whether a process that was told to keep to AVX2 does, by its share of AVX-512; None was not sampled."""
    return share is None or share <= MOST_AVX512


def avx512_share(pid: int, run: Callable[[], object], folder: Path) -> float | None:
    """Return the share of AVX-512 among the vector instructions of a process while `run` has it work.

    None where `perf` is not there, may not look, or met no vector instruction.
    """
    perf = shutil.which("perf")
    if perf is None:
        return None
    record = folder / "perf.data"
    command = [perf, "record", "-q", "-e", "cpu-clock", "-F", "997", "-p", str(pid), "-o", str(record)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sampler:
        time.sleep(_STARTS_S)
        run()
        sampler.terminate()
        sampler.wait(_STOPS_S)
    listed = subprocess.run([perf, "script", "-i", str(record), "-F", "ip"], capture_output=True, text=True)
    record.unlink(missing_ok=True)
    addresses = [int(line.split()[0], 16) for line in listed.stdout.splitlines() if line.strip()]
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            met = Counter(map(encoding, _read(memory, addresses)))
    except OSError:
        return None
    vectors = met["evex"] + met["vex"]
    return round(met["evex"] / vectors, 4) if vectors else None


def _read(memory: IO[bytes], addresses: Iterable[int]) -> Iterable[bytes]:
    for address in addresses:
        if address >> _USER_BITS:
            continue
        try:
            memory.seek(address)
            yield memory.read(1)
        except OSError:  # what was there is gone
            continue

"""What a measurement takes and gives: limits, remote devices, the outcome of a point, the noise of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from relaxc.schedules.template import Parameters

__all__ = ["GPU_LIMITS", "Kind", "MeasureLimits", "Noise", "Outcome", "RpcOptions"]

Kind = Literal["measured", "build-failed", "crashed", "hung", "wrong", "refused"]
"""How a trial ended: only `measured` has a time.

`refused`: the rule does not take the point; `build-failed`: TVM, LLVM or the linker raised; `crashed` and `hung`: the
process that built or ran it died, or passed its time; `wrong`: its numbers are not the untuned kernel's.
"""


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """What one trial may take: seconds of wall clock, private writable bytes a process, and how often it is run.

    Before a candidate is timed its cores are kept busy for `warm_up_s` seconds, and its first `warm_up_runs` runs do
    not count. It is run `min_runs` times at least, and then until the standard error of its median is at most the part
    `error` of it, `measure_s` seconds are over or it was run `max_runs` times. One that is `hopeless` times slower than
    the best of its task stops at `min_runs`. `quiet_wait_s` bounds each wait for a noisy machine. On a GPU a run is a
    CUDA graph of many calls, and `kernel_s` bounds how long one request may hold the device.
    """

    build_s: float = 20.0
    run_s: float = 30.0
    memory_bytes: int = 8 << 30
    warm_up_s: float = 0.005
    warm_up_runs: int = 3
    measure_s: float = 0.1
    min_runs: int = 5
    max_runs: int = 60
    error: float = 0.01
    hopeless: float = 2.0
    quiet_wait_s: float = 20.0
    kernel_s: float = 10.0


GPU_LIMITS = MeasureLimits(build_s=120.0, run_s=90.0, warm_up_s=0.01, warm_up_runs=1, max_runs=40, error=0.003)
"""nvcc takes longer than LLVM; a run may wait for the GPU while another tuning has it, and its clock is steadier."""


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """Servers of TVM's RPC that registered under `key` at the tracker; `session_s` bounds one upload and its runs."""

    host: str
    port: int
    key: str
    session_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one point; `seconds` is the median of `runs` runs, `spread` is (p90 - p10) / median,
    `error` the standard error of the median over it.

    `detail` is for people, and empty when measured. `loud`: the machine was not quiet while it was measured, so that
    the time may be off by more than the spread says.
    """

    point: Parameters
    kind: Kind
    seconds: float | None = None
    spread: float = 0.0
    runs: int = 0
    detail: str = ""
    loud: bool = False
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """What the reference kernel said last: its time, its spread, and its drift from the fastest of late.

    `loud` says that the machine cannot be trusted now. Before the first measurement all is zero.
    """

    seconds: float = 0.0
    spread: float = 0.0
    drift: float = 0.0
    loud: bool = False

"""The target that machine code is made for: that of the schedules, with options for LLVM where it is a CPU."""

from __future__ import annotations

from typing import Any

from relaxc.service.lowering.target import llvm_attributes, to_tvm
from relaxc.service.request import TargetSpec

__all__ = ["to_code_target"]

_OPTIONS = (
    # LLVM need not run a loop's iterations in mind to see whether they get shorter when it is unrolled: what gains
    # from that is unrolled before. It took a fifth of LLVM's time for MobileNetV2.
    "-unroll-max-iteration-count-to-analyze:uint=0",
    # Its limit at -O2. With that of -O3, 300, it unrolled the two loops around a tile that clears accumulators: 3,072
    # stores, which its scheduler compares with one another for half a second.
    "-unroll-threshold-aggressive:uint=150",
)
"""How much LLVM unrolls by itself. Only options that it reads as values do anything: TVM sets no option's count of
occurrences, by which others, such as `-unroll-threshold`, are known to be given."""


def to_code_target(spec: TargetSpec) -> Any:
    """Return the `tvm.target.Target` to build code with for `spec`."""
    from tvm.target import Target

    if spec.kind != "llvm":
        return to_tvm(spec)
    return Target({"kind": "llvm", **llvm_attributes(spec), "cl-opt": list(_OPTIONS)})

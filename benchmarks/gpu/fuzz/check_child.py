"""One process that runs kernels and compares them with fp64 references: a fault or a hang costs it alone."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import load_libraries, say
from benchmarks.gpu.child_kernel import compared, poison
from benchmarks.gpu.manifest import Entry

__all__ = ["as_held", "check"]

_BREAKS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError, OSError)
_GUARD_BYTES = 4096
"""Before and behind each tensor."""
_LEAST = {
    "gemm": 1.0,
    "conv_bytes": 1.0,
    "gemm_bytes": 1.0,
    "gemm_sm80": 1.0,
    "conv": 1.0,
    "rows": 0.1,
    "groups": 1.0,
    "plain": 0.3,
    "attention": 0.02,
    "moves": 0.0,
    "masked": 1.0,
}
"""What elements of a suite's results are about, so that one that cancels to nothing is judged as its neighbours are."""
_SHORT = 32
"""Columns of a row, or pixels and channels of a group, whose variance may be nearly nothing."""


def main() -> int:
    """Check each entry of stdin; `host`: nothing but the kernels runs on the device, as sanitizers want it."""
    device, made_on = sys.argv[1], sys.argv[1] if len(sys.argv) < 3 else sys.argv[2]
    if device == "cuda":
        load_libraries(Path("/nonexistent"))
    else:
        import tvm  # noqa: F401, it loads the runtime that the library calls
    say(ready=True)
    for line in sys.stdin:
        entry = Entry(**json.loads(line))
        row: dict[str, Any] = {"id": entry.id, "status": "done"}
        try:
            row |= check(entry, _loaded(entry.files[0])[entry.made["kernel"]], device, made_on)
        except _BREAKS as error:
            row |= {"status": "failed", "failed": f"{type(error).__name__}: {error}"[-400:]}
        say(**row)
        if row["status"] == "failed" and device == "cuda":
            os._exit(3)  # a broken context stays broken
    return 0


@lru_cache(maxsize=64)
def _loaded(library: str) -> Any:
    import tvm_ffi

    return tvm_ffi.load_module(library)


def check(entry: Entry, kernel: Any, device: str, made_on: str) -> dict[str, Any]:
    """Return whether the kernel is right, its bits equal in three runs, its inputs and what is around them untouched.

    The operands lie between NaN, or the numbers farthest from what is in them; the result is poisoned with another
    value before each run.
    """
    import torch

    suite, case = importlib.import_module(f"benchmarks.gpu.{entry.suite}_device"), entry.case
    made = suite.inputs(case, 1, made_on)
    guarded = device == made_on
    given = [_guarded(each) if guarded else (each.to(device), None) for each in made]
    shape, dtype = suite.result(case)
    outs = []
    for value in _poisons(getattr(torch, dtype)):
        poisoned = torch.full(shape, value, dtype=getattr(torch, dtype), device=made_on)
        out, around = _guarded(poisoned) if guarded else (poisoned.to(device), None)
        kernel(*(x for x, _ in given), *(entry.made or {}).get("sizes", ()), out)
        if device == "cuda":
            torch.cuda.synchronize()
        outs.append((out, around))
        if not guarded:
            break
    equal = all(_same(outs[0][0], out) for out, _ in outs[1:])
    got, tolerance = outs[0][0].to(made_on), _tolerance(suite, entry)
    want = as_held(suite.reference(case, made), got, tolerance)
    found = {**compared(got, want, tolerance, equal, _least(entry)), "tolerance": tolerance}
    kept = all(_same(x.to(made_on), original) for (x, _), original in zip(given, made, strict=True))
    inside = all(_is_untouched(around) for _, around in (*given, *outs) if around is not None)
    extra = {} if kept and inside else {"inputs_kept": kept, "wrote_inside": inside}
    return {**found, "right": found["right"] and kept and inside, **extra}


def _poisons(dtype: Any) -> tuple[Any, ...]:
    """What three runs find in the result: an element that none of them writes is not the same in all."""
    return (poison(dtype), False, True) if str(dtype) == "torch.bool" else (poison(dtype), 77, poison(dtype))


def _around(dtype: Any) -> Any:
    """What lies around a tensor, as a kernel that reads it would show."""
    return poison(dtype)


def _guarded(tensor: Any) -> tuple[Any, Any]:
    """Return a copy of the tensor, and what it lies in: aligned as an allocation is, poison around it."""
    import torch

    edge, count = _GUARD_BYTES // tensor.element_size(), tensor.numel()
    whole = torch.full((count + 2 * edge,), _around(tensor.dtype), dtype=tensor.dtype, device=tensor.device)
    inner = whole[edge : edge + count].view(tensor.shape)
    inner.copy_(tensor)
    return inner, whole


def _is_untouched(whole: Any) -> bool:
    import torch

    edge = _GUARD_BYTES // whole.element_size()
    both = torch.cat([whole[:edge], whole[-edge:]])
    return _same(both, torch.full_like(both, _around(whole.dtype)))


def _same(first: Any, second: Any) -> bool:
    """Whether two tensors have the same bits, NaN with NaN."""
    import torch

    if not first.dtype.is_floating_point:
        return bool(torch.equal(first, second))
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    differ = first.contiguous().view(bits) != second.contiguous().view(bits)
    return not bool((differ & ~(first.isnan() & second.isnan())).any())


def as_held(want: Any, got: Any, tolerance: float) -> Any:
    """Return the reference with infinities where the result's dtype holds no number as large.

    What is as near to its largest number as the tolerance may be rounded to either: there the result decides.
    """
    import torch

    if not got.dtype.is_floating_point:
        return want
    largest = torch.finfo(got.dtype).max
    either = (want.abs() >= largest * (1 - tolerance)) & (got == want.sign() * torch.inf)
    return torch.where((want.abs() > largest * (1 + tolerance)) | either, want.sign() * torch.inf, want)


def _tolerance(suite: Any, entry: Entry) -> float:
    """The suite's tolerance; wider for long sums that stay in fp32, and where fp32 itself is ill-conditioned.

    That is norms of little, which divide by little, and exponentials of large numbers.
    """
    case, tolerance = entry.case, float(suite.tolerance(entry.case))
    if case["out"] != "float32":
        return tolerance
    if entry.suite.startswith("gemm"):
        return tolerance * max(1.0, int(case["k"]) / 1024)
    if entry.suite == "rows" and (case["shape"][-1] < _SHORT or (case["kind"], case["before"]) == ("softmax", "scale")):
        return tolerance * 16
    if entry.suite == "groups" and case["shape"][1] * case["shape"][2] * case["shape"][3] // case["groups"] < _SHORT:
        return tolerance * 16
    return tolerance


def _least(entry: Entry) -> float:
    small = entry.suite == "rows" and entry.case["kind"] in ("softmax", "transpose")
    return 0.0 if small else _LEAST[entry.suite]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

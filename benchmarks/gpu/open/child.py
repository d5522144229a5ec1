"""One process that compiles and times a drawn network: ours and torch.compile's, on one GPU, in turns."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.build_model import compile_to
from benchmarks.gpu.child import load_libraries, say
from benchmarks.gpu.child_model import load_model, results_of
from benchmarks.gpu.open.draw import Net, draw, drawn_inputs
from benchmarks.gpu.timing import kernels_of, milliseconds_in_turns

__all__ = ["alone", "blamed", "measure_net"]

_CHECKS = 2
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}
"""Beside twice the error of eager torch: what rounding the result itself does."""
_KERNELS = 1000
"""More than any network has."""


def main() -> int:
    """Measure the network of the seed at the batch that the arguments say, and say a row."""
    seed, batch, lock = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    row: dict[str, Any] = {"seed": seed, "batch": batch}
    row |= measure_net(draw(seed), batch, lock, lambda **found: say(**row, **found, partial=True))
    say(**row)
    return 0


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    """Wait until no other process takes times."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def measure_net(net: Net, batch: int, lock: Path, say_so_far: Callable[..., None]) -> dict[str, Any]:
    """Return errors, milliseconds in turns, the ratio, and our kernels by rule."""
    import torch

    wide, dtype = net.module, getattr(torch, net.dtype)
    rounded = {name: _rounded(value, dtype) for name, value in wide.state_dict().items()}
    wide.load_state_dict(rounded)
    low = draw_again(net, rounded).to(dtype)
    inputs = drawn_inputs(net, batch, 1)
    found: dict[str, Any] = {"kind": net.kind, "dtype": net.dtype}
    start = time.perf_counter()
    with TemporaryDirectory() as scratch, torch.no_grad():
        torch.export.save(torch.export.export(low, inputs, strict=False), f"{scratch}/model.pt2")
        front, _ = compile_to(Path(scratch, "model.pt2"), Path(scratch, "model.so"))
        found["compile_s"] = round(time.perf_counter() - start, 1)
        load_libraries(Path("/nonexistent"))
        wide, low, inputs = wide.cuda(), low.cuda(), tuple(each.cuda() for each in inputs)
        weights = [torch.from_dlpack(value).cuda() for value in front.optimized.weights.values()]
        ours, _ = load_model(Path(scratch, "model.so"), weights, inputs)
        found["device"] = torch.cuda.get_device_name()
        found |= _errors(net, batch, wide, low, ours)
        say_so_far(**found)
        compiled = torch.compile(low, mode="reduce-overhead")
        for _ in range(4):
            compiled(*inputs)
        torch.cuda.synchronize()
        with alone(lock):
            found |= milliseconds_in_turns({"ours": lambda: ours(*inputs), "torch": lambda: compiled(*inputs)})
            kernels = kernels_of(lambda: ours(*inputs), most=_KERNELS)
            found["theirs"] = kernels_of(lambda: compiled(*inputs), most=8)
    found["ratio"] = round(found["ms"]["ours"] / found["ms"]["torch"], 3)
    return found | blamed(kernels, front.scheduled.report)


def draw_again(net: Net, state: dict[str, Any]) -> Any:
    """Return the network a second time, with these weights."""
    from copy import deepcopy

    module = deepcopy(net.module)
    module.load_state_dict(state)
    return module


def _rounded(value: Any, dtype: Any) -> Any:
    return value.to(dtype).to(value.dtype) if value.is_floating_point() else value


def _errors(net: Net, batch: int, wide: Any, low: Any, ours: Callable[..., Any]) -> dict[str, Any]:
    """The largest error of several inputs relative to fp32, of ours and of eager; `right`: ours is not much larger."""
    import torch

    mine, eager, same = [], [], True
    for seed in range(_CHECKS):
        given = tuple(each.cuda() for each in drawn_inputs(net, batch, 100 + seed))
        want = wide(*(each.float() if each.is_floating_point() else each for each in given)).double()
        got, again = results_of(ours(*given))[0], results_of(ours(*given))[0]
        same = same and torch.equal(got, again)
        norm = want.norm().clamp_min(1e-20)
        mine.append(float((got.double() - want).norm() / norm))
        eager.append(float((low(*given).double() - want).norm() / norm))
    right = same and max(mine) <= 2 * max(eager) + _TOLERANCE[net.dtype]
    return {"error": max(mine), "eager_error": max(eager), "equal_bits": same, "right": right}


def blamed(kernels: Sequence[tuple[str, float, float]], report: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of the time of each rule, that without a template, and the longest kernels with their rules.

    A kernel is called by its PrimFunc's name and `_kernel`; what has no rule is TVM's own, or a copy.
    """
    from relaxc.schedules.cuda import WITHOUT_TEMPLATE

    rows = {row["function"]: row for row in report}
    total = sum(us for _, _, us in kernels) or 1.0
    shares: dict[str, float] = {}
    table = []
    for name, launches, us in kernels:
        row = rows.get(name.split("_kernel")[0], {"rule": "given", "shapes": ""})
        rule = row["rule"]
        shares[rule] = shares.get(rule, 0.0) + us / total
        table.append([name[:60], rule, row["shapes"], launches, us])
    without = sum(share for rule, share in shares.items() if rule in WITHOUT_TEMPLATE)
    rounded = {rule: round(share, 3) for rule, share in sorted(shares.items(), key=lambda pair: -pair[1])}
    return {"us": round(total, 1), "shares": rounded, "without": round(without, 3), "kernels": table[:16]}


if __name__ == "__main__":
    sys.exit(main())

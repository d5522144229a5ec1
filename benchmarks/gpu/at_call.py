"""Artifacts whose sizes are known at the call, beside those of each size and torch.compile(dynamic=True), on one GPU.

    python -m benchmarks.gpu.at_call LOCK NAME…

NAME is a model of `benchmarks.gpu.models`, or `open:SEED`, a network of `benchmarks.gpu open` of any batch. Says one
row for each size: milliseconds, ratios, and the error beside that of eager torch, both relative to fp32. The file LOCK
keeps processes beside each other from taking times at once. Compiles on the machine with the GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.build_model import compile_to
from benchmarks.gpu.child import load_libraries, say
from benchmarks.gpu.child_model import load_model, results_of
from benchmarks.gpu.models import model_of
from benchmarks.gpu.open.child import alone, blamed
from benchmarks.gpu.open.draw import draw, drawn_inputs
from benchmarks.gpu.timing import kernels_of, milliseconds_in_turns

__all__ = ["measure"]

_BREAKS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError, OSError)
_SIZES: Mapping[str, Sequence[tuple[int, int]]] = {
    "bert": ((1, 128), (8, 77), (32, 128), (4, 384)),
    "gpt2": ((1, 128), (4, 200), (8, 512), (2, 33)),
    "llama": ((1, 128), (4, 200), (2, 512), (1, 37)),
    "gpt2_decode": ((1, 512), (8, 100), (4, 1000), (2, 37)),
}
"""Batch, and tokens: of decoding, those in the cache."""
_BATCHES = (1, 8, 32, 5)
_TOLERANCE = 2e-3
"""Beside twice the error of eager torch: what rounding the result itself does, in bf16 eight times as much."""


@dataclass(frozen=True)
class _Case:
    """A module in 16 bits, its inputs for a size, and which of their dims are known at the call."""

    module: Any
    inputs: Callable[[tuple[int, int]], tuple[Any, ...]]
    sizes: Sequence[tuple[int, int]]
    open: Sequence[tuple[int, ...]]
    tolerance: float = _TOLERANCE


def main() -> int:
    """Measure what the arguments name."""
    load_libraries(Path("/nonexistent"))
    for name in sys.argv[2:]:
        try:
            measure(name, Path(sys.argv[1]))
        except _BREAKS as error:  # the next one goes on
            say(name=name, failed=f"{type(error).__name__}: {error}"[-600:])
    return 0


def _case(name: str) -> _Case:
    import torch

    if name.startswith("open:"):
        net = draw(int(name.removeprefix("open:")))
        module = net.module.to(getattr(torch, net.dtype))
        sizes = [(batch, 0) for batch in _BATCHES[:3]]
        wide = _TOLERANCE * (8 if net.dtype == "bfloat16" else 1)
        return _Case(module, lambda size: drawn_inputs(net, size[0], size[0]), sizes, [(0,)], wide)
    module, base = model_of(name, 2)
    if name in ("resnet50", "mobilenet_v2", "vit"):
        return _Case(module, lambda size: model_of(name, size[0])[1], [(batch, 0) for batch in _BATCHES], [(0,)])
    axes = [(0,)] + [(0, 2)] * (len(base) - 1) if name == "gpt2_decode" else [(0, 1)] * len(base)

    def inputs(size: tuple[int, int]) -> tuple[Any, ...]:
        batch, tokens = size
        draw = torch.Generator().manual_seed(batch)
        if name == "gpt2_decode":
            shape = (batch, 12, tokens, 64)
            first = torch.randint(5, 30000, (batch, 1), generator=draw)
            return (first, *(torch.randn(shape, generator=draw).half() for _ in base[1:]))
        words = torch.randint(5, 30000, (batch, tokens), generator=draw)
        mask = torch.ones(batch, tokens, dtype=torch.int64)
        mask[1:, tokens - tokens // 5 :] = 0
        return (words, mask)[: len(base)]

    return _Case(module, inputs, _SIZES[name], axes)


def measure(name: str, lock: Path) -> None:
    """Say a row for each size, and one of the kernels of the artifact of all sizes."""
    import torch

    case = _case(name)
    with TemporaryDirectory() as scratch, torch.no_grad():
        first = case.inputs((2, case.sizes[1][1]))
        dynamic: tuple[Any, ...] = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in case.open)
        if name == "gpt2_decode":  # `forward(x, *past)`
            dynamic = (dynamic[0], dynamic[1:])
        if case.open == [(0,)]:  # so few sizes have a CUDA graph each
            dynamic = ({0: torch.export.Dim("batch", min=1, max=max(_BATCHES))},)
        open_model, front = _compiled(case.module, first, Path(scratch, "open"), dynamic)
        fixed = [
            _compiled(case.module, case.inputs(size), Path(scratch, f"s{i}"))[0] for i, size in enumerate(case.sizes)
        ]
        wide, low = deepcopy(case.module).float().cuda(), case.module.cuda()
        compiled = torch.compile(low, dynamic=True)
        for size, static in zip(case.sizes, fixed, strict=True):
            given = tuple(each.cuda() for each in case.inputs(size))
            row: dict[str, Any] = {"name": name, "size": size, **_errors(case, wide, low, open_model, given)}
            for _ in range(4):
                compiled(*given)
            torch.cuda.synchronize()
            with alone(lock):
                calls = {name: partial(each, *given) for name, each in (("ours", open_model), ("static", static))}
                row |= milliseconds_in_turns({**calls, "torch": partial(compiled, *given)})
                kernels, of_static = (kernels_of(call, most=1000) for call in calls.values())
            ms, busy = row["ms"], [sum(us for *_, us in each) / 1e3 for each in (kernels, of_static)]
            row |= {"to_static": round(ms["ours"] / ms["static"], 3), "to_torch": round(ms["ours"] / ms["torch"], 3)}
            row |= {"busy_ms": [round(each, 4) for each in busy], "launches": sum(n for _, n, _ in kernels)}
            say(**row, **blamed(kernels, front.scheduled.report), of_static=of_static[:8])
        for size in case.sizes:  # each again, when the others have been: what is kept of a size is its own
            given = tuple(each.cuda() for each in case.inputs(size))
            say(name=name, size=size, again=True, **_errors(case, wide, low, open_model, given))


def _compiled(module: Any, inputs: tuple[Any, ...], stem: Path, dynamic: Any = None) -> tuple[Any, Any]:
    """The model as a function of tensors on the GPU, and what the stages made of it."""
    import torch

    exported = torch.export.export(module.cpu(), inputs, dynamic_shapes=dynamic, strict=False)
    torch.export.save(exported, f"{stem}.pt2")
    front, _ = compile_to(Path(f"{stem}.pt2"), Path(f"{stem}.so"))
    weights = [torch.from_dlpack(value).cuda() for value in front.optimized.weights.values()]
    call, _ = load_model(Path(f"{stem}.so"), weights, tuple(each.cuda() for each in inputs))
    return call, front


def _errors(case: _Case, wide: Any, low: Any, ours: Callable[..., Any], given: tuple[Any, ...]) -> dict[str, Any]:
    """Errors in norm relative to fp32, the worst of all results, and whether ours is not much larger than eager's."""
    import torch

    def several(value: Any) -> list[Any]:
        return list(value) if isinstance(value, tuple | list) else [value]

    seen: Any = (
        given[1].bool() if len(given) == 2 and given[1].dtype == torch.int64 else ...
    )  # padding is not asked for
    want = several(wide(*(each.float() if each.is_floating_point() else each for each in given)))
    got, again, eager = results_of(ours(*given)), results_of(ours(*given)), several(low(*given))

    def off(each: Any, exact: Any) -> float:
        exact = exact[seen].double()
        return float((each[seen].double() - exact).norm() / exact.norm().clamp_min(1e-20))

    mine, theirs = (max(map(off, each, want)) for each in (got, eager))
    same = all(torch.equal(a, b) for a, b in zip(got, again, strict=True))
    right = same and mine <= 2 * theirs + case.tolerance
    return {"error": mine, "eager_error": theirs, "equal_bits": same, "right": right}


if __name__ == "__main__":
    sys.exit(main())

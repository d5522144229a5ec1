"""Products with weights of 4 or 8 bits on the device: inputs, the reference and peers for `gemv_weights_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.gemm_bytes_device import result

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-5}
"""Relative to the norm of the result: its rounding, and that of fp32 sums in another order."""
_TILE, _LANES, _BYTES = 16, 32, 16


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return _TOLERANCE[case["out"]]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written: what the weights are, whatever fills their last tiles."""
    m, n, k = case["m"], case["n"], case["k"]
    scale = (2 if case["scales"] != "float32" else 4) + case["zeros"]
    weights = n * k * case["bits"] / 8 + n * k / (case["block"] or k) * scale
    return 2.0 * m * n * k, weights + m * (2 * k + n * (4 if case["out"] == "float32" else 2))


def _shapes(case: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the codes and of the scales, as `relaxc.schedules.cuda.gemm.blocks_compute` has them."""
    step = 256 // case["bits"]
    tiles, steps = -(-case["n"] // _TILE), -(-case["k"] // step)
    return (tiles, steps, _LANES, _BYTES), (tiles, -(-steps * step // (case["block"] or case["k"])), 8, 2)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU, in the order of the kernel's parameters: every code comes up."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    dtype, (codes, blocks) = getattr(torch, case["dtype"]), _shapes(case)

    def integers(high: int, shape: tuple[int, ...]) -> Any:
        return torch.randint(0, high, shape, device=device, generator=draw, dtype=torch.uint8)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=device, generator=draw)

    scales = (torch.rand(blocks, device=device, generator=draw) + 0.5) / (1 << case["bits"] - 1) / case["k"] ** 0.5
    made = [normal(case["m"], case["k"]).to(dtype), integers(256, codes), scales.to(getattr(torch, case["scales"]))]
    if case["zeros"]:
        made.append(integers(1 << case["bits"], blocks))
    if case["epilogue"].startswith("bias"):
        made.append(normal(case["n"]))
    if case["epilogue"] == "residual":
        made.append(normal(case["m"], case["n"]).to(dtype))
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64, from the codes as a lane has them."""
    import torch

    wide = torch.float64 if case["n"] * case["k"] < 1 << 26 else torch.float32
    value = given[0].to(wide) @ _weights(case, given, wide).t()
    if case["epilogue"] != "none":
        value = value + given[-1].to(wide)
    return torch.nn.functional.silu(value) if case["epilogue"] == "bias_silu" else value


def _weights(case: dict[str, Any], given: list[Any], wide: Any) -> Any:
    """`W[n, k]`: a lane's bytes are of two rows of a tile, eight apart, and of eight steps in each 32 of the depth."""
    import torch

    bits, n, k = case["bits"], case["n"], case["k"]
    tiles, steps = given[1].shape[:2]
    codes = given[1].reshape(tiles, steps, 8, 4, _BYTES)
    if bits == 4:
        # [tile, step, row, lane's part, group, eights' half, second pair, element, half of the tile]
        apart = codes.reshape(tiles, steps, 8, 4, 2, 2, 2, 2)  # byte: group, half of eight, element % 2, element // 2
        both = torch.stack([apart & 15, apart >> 4], dim=-1)
        ordered = both.permute(0, 8, 2, 1, 4, 3, 5, 7, 6)
    else:
        apart = codes.reshape(tiles, steps, 8, 4, 2, 2, 4)  # byte: half of eight, half of the tile, element
        ordered = apart.permute(0, 5, 2, 1, 3, 4, 6)
    values = ordered.reshape(tiles * _TILE, -1)[:n, :k].to(wide)

    def spread(array: Any) -> Any:
        rows = array.permute(0, 3, 2, 1).reshape(tiles * _TILE, -1).to(wide)
        return rows.repeat_interleave(case["block"] or k, dim=1)[:n, :k]

    zero = spread(given[3]) if case["zeros"] else float(1 << bits - 1)
    return (values - zero) * spread(given[2])


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return cuBLAS's product of 16 bits, which these weights replace, and a copy of half as many bytes as are read."""
    import torch

    weights = _weights(case, given, torch.float32).to(given[0].dtype)
    many = int(work(case)[1]) // 2
    source = torch.zeros(many, dtype=torch.uint8, device=given[0].device)
    target = torch.empty_like(source)
    return {"cublas, 16 bits": lambda: torch.mm(given[0], weights.t()), "copy": lambda: target.copy_(source)}

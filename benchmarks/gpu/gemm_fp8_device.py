"""Products of 8-bit floats on the device: inputs, the reference and cublasLt for a case of `gemm_fp8_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.gemm_bytes_device import result

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 1e-3, "bfloat16": 5e-3, "float32": 6e-4, "float8_e4m3fn": 2e-2}
"""Relative to the norm of the result: its rounding, and what the tensor cores leave off of parts of sums."""
_STEP = 0.02


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return _TOLERANCE[case["out"]]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written."""
    m, n, k = case["m"], case["n"], case["k"]
    size = {"float32": 4, "float8_e4m3fn": 1}.get(case["out"], 2)
    return 2.0 * m * n * k, float(m * k + n * k + size * m * n * (2 if "residual" in case["epilogue"] else 1))


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU, in the order of the kernel's parameters."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=device, generator=draw)

    m, n, k, epilogue = case["m"], case["n"], case["k"], case["epilogue"]
    made = [(normal(rows, k) * 32).to(torch.float8_e4m3fn) for rows in (m, n)]
    scale = 1 / (1024 * k**0.5)
    columns = (torch.rand(n, device=device, generator=draw) + 0.5) * scale
    if epilogue == "scale":
        made.append(torch.tensor(scale, device=device))
    if epilogue == "rows":
        made += [torch.rand(m, 1, device=device, generator=draw) + 0.5, columns]
    if epilogue.startswith("columns") or epilogue == "quantize":
        made += [columns, normal(n)]
    if epilogue == "columns_residual":
        made.append(normal(m, n).to(getattr(torch, case["out"])))
    if epilogue == "quantize":
        made.append(torch.tensor(_STEP, device=device))
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result by fp64, of e4m3 rounded from it."""
    import torch

    a, b, *rest = (x.to(torch.float64) for x in given)
    value, epilogue = torch.matmul(a, b.t()), case["epilogue"]
    if epilogue == "none":
        return value
    value = value * rest[0]
    if epilogue == "rows":
        value = value * rest[1]
    if epilogue.startswith("columns") or epilogue == "quantize":
        value = value + rest[1]
    if epilogue == "columns_gelu":
        return torch.nn.functional.gelu(value)
    if epilogue == "columns_residual":
        return value + rest[2]
    if epilogue == "quantize":
        return (value / rest[2]).clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float64)
    return value


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return cublasLt's product of e4m3 without an epilogue, summed exactly and fast, and cuBLAS's of fp16."""
    import torch

    a, b = given[0], given[1].t()
    one = torch.ones((), device=a.device)
    low = [given[0].to(torch.float16), given[1].to(torch.float16).t()]
    dtype = torch.bfloat16 if case["out"] == "bfloat16" else torch.float16

    def scaled(fast: bool) -> Callable[[], Any]:
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=dtype, use_fast_accum=fast)

    return {
        "cublasLt, e4m3": scaled(False),
        "cublasLt, e4m3, fast sums": scaled(True),
        "cublas, fp16": lambda: torch.mm(*low),
    }

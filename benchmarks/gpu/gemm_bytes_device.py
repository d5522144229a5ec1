"""Products of bytes on the device: inputs, the reference and cublasLt for a case of `gemm_bytes_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-6, "int32": 0.0, "int8": 2e-3, "uint8": 2e-3}
"""Relative to the norm of the result: rounding of the result. Sums of bytes are exact; of bytes made of floats, a few
may fall to the other side of a boundary."""
_STEP = 0.05
_ZERO = 3


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return _TOLERANCE[case["out"]]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return (case["m"], case["n"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written."""
    m, n, k = case["m"], case["n"], case["k"]
    size = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}.get(case["out"], 1)
    return 2.0 * m * n * k, float(m * k + n * k + size * m * n)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU, in the order of the kernel's parameters; all values of a byte come up."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    m, n, k, epilogue = case["m"], case["n"], case["k"], case["epilogue"]

    def integers(low: int, high: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return torch.randint(low, high, shape, device=device, generator=draw, dtype=dtype)

    left = integers(0, 256, (m, k), torch.uint8) if case["left"] == "uint8" else integers(-128, 128, (m, k), torch.int8)
    made = [left, integers(-128, 128, (n, k), torch.int8)]
    if epilogue == "zero":
        made.append(integers(-100_000, 100_000, (n,), torch.int32))
    if epilogue.startswith(("scale", "quantize")):
        scale = torch.rand(n, device=device, generator=draw) + 0.5
        made += [scale / (k**0.5 * 74 * 147), torch.randn(n, device=device, generator=draw)]
    if epilogue == "scale_residual":
        made.append(torch.randn(m, n, device=device, generator=draw).to(getattr(torch, case["out"])))
    if epilogue.startswith("quantize"):
        made += [
            torch.tensor(_STEP, device=device),
            torch.tensor(_ZERO, dtype=getattr(torch, case["out"]), device=device),
        ]
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result by fp64, which has the sums of bytes exactly."""
    import torch

    a, b, *rest = (x.to(torch.float64) for x in given)
    sums = torch.matmul(a, b.t())
    epilogue = case["epilogue"]
    if epilogue in ("none", "zero"):
        return sums - rest[0] if epilogue == "zero" else sums
    value = sums * rest[0] + rest[1]
    if epilogue == "scale_gelu":
        return torch.nn.functional.gelu(value)
    if epilogue == "scale_residual":
        return value + rest[2]
    value = torch.relu(value) if epilogue == "quantize_relu" else value
    if not epilogue.startswith("quantize"):
        return value
    info = torch.iinfo(getattr(torch, case["out"]))
    step = float(torch.tensor(_STEP, dtype=torch.float32))
    return (torch.round(value / step) + _ZERO).clamp(info.min, info.max)


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return cublasLt's product of int8 without an epilogue, and cuBLAS's of fp16, which a quantized model replaces."""
    import torch

    a = given[0].view(torch.int8)  # the same bytes: cublasLt has no product of uint8
    b = given[1].t()
    low = [given[0].to(torch.float16), given[1].to(torch.float16).t()]
    return {"cublasLt, int8": lambda: torch._int_mm(a, b), "cublas, fp16": lambda: torch.mm(*low)}

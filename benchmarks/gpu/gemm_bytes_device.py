"""Products of bytes on the device: inputs, the reference and cublasLt for a case of `gemm_bytes_cases`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["bytes_of", "finished", "fused", "inputs", "peers", "reference", "result", "size_of", "tolerance", "work"]

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
    return 2.0 * m * n * k, float(m * k + n * k + size_of(case) * m * n)


def size_of(case: dict[str, Any]) -> int:
    """Return the bytes of an element of the result, and of a residual as large as it."""
    size = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}.get(case["out"], 1)
    return size * (2 if "residual" in case["epilogue"] else 1)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU, in the order of the kernel's parameters; all values of a byte come up."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    m, n, k = case["m"], case["n"], case["k"]
    return bytes_of(draw, case["left"], (m, k), (n, k)) + fused(draw, case, (m, n), k)


def bytes_of(draw: Any, left: str, image: tuple[int, ...], weight: tuple[int, ...]) -> list[Any]:
    """Return random operands: bytes of the dtype `left`, and int8."""
    import torch

    def integers(dtype: str, shape: tuple[int, ...]) -> Any:
        kind = getattr(torch, dtype)
        low, high = torch.iinfo(kind).min, torch.iinfo(kind).max + 1
        return torch.randint(low, high, shape, device=draw.device, generator=draw, dtype=kind)

    return [integers(left, image), integers("int8", weight)]


def fused(draw: Any, case: dict[str, Any], shape: tuple[int, ...], depth: int) -> list[Any]:
    """Return the operands of what is fused with sums of `depth` products."""
    import torch

    epilogue, columns, device = case["epilogue"], shape[-1], draw.device
    made = []
    if epilogue == "zero":
        made.append(torch.randint(-100_000, 100_000, (columns,), device=device, generator=draw, dtype=torch.int32))
    if epilogue.startswith(("scale", "quantize")):
        scale = torch.rand(columns, device=device, generator=draw) + 0.5
        made += [scale / (depth**0.5 * 74 * 147), torch.randn(columns, device=device, generator=draw)]
    if epilogue == "scale_residual":
        made.append(torch.randn(*shape, device=device, generator=draw).to(getattr(torch, case["out"])))
    if epilogue.startswith("quantize"):
        made += [
            torch.tensor(_STEP, device=device),
            torch.tensor(_ZERO, dtype=getattr(torch, case["out"]), device=device),
        ]
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result by fp64, which has the sums of bytes exactly."""
    import torch

    a, b = (x.to(torch.float64) for x in given[:2])
    return finished(case, torch.matmul(a, b.t()), given[2:])


def finished(case: dict[str, Any], sums: Any, given: list[Any]) -> Any:
    """Return what the epilogue makes of sums in fp64."""
    import torch

    rest, epilogue = [x.to(torch.float64) for x in given], case["epilogue"]
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

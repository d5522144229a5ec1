"""Products on the device: inputs, the reference and cuBLAS for a case of `gemm_cases` as JSON has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-5}
"""Relative to the norm of the result: rounding of the result, and of fp32 sums in another order."""
_PARTS = 1.5e-6
"""The same of operands of fp32 in three parts each: one product that is left out shows."""


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    if case.get("rule") == "cuda.gemm_sm80" and case["dtype"] == case["out"] == "float32":
        return _PARTS
    return _TOLERANCE[case["dtype" if case["epilogue"] == "low" else "out"]]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return (case["batch"], case["m"], case["n"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written."""
    batch, m, n, k = case["batch"], case["m"], case["n"], case["k"]
    return 2.0 * batch * m * n * k, 2.0 * batch * (m * k + n * k + m * n)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU, in the order of the kernel's parameters."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=device, generator=draw)

    batch, m, n, k, dtype = case["batch"], case["m"], case["n"], case["k"], getattr(torch, case["dtype"])
    b_shape = (batch, k, n) if case["n_major"] else (batch, n, k)
    made = [normal(batch, m, k).to(dtype), (normal(*b_shape) / k**0.5).to(dtype)]
    if case["epilogue"].startswith("bias") or case["epilogue"] == "low":
        made.append(normal(n).to(dtype if case["epilogue"] == "low" else torch.float32))
    if case["epilogue"] in ("bias_residual", "low"):
        made.append(normal(batch, m, n).to(dtype))
    return made


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64, of large products of fewer bits in fp32."""
    import torch
    from torch.nn import functional

    wide = torch.float64 if work(case)[0] < 1 << 35 or case["dtype"] == "float32" else torch.float32
    a, b, *rest = (x.to(wide) for x in given)
    value = torch.matmul(a, b if case["n_major"] else b.transpose(1, 2))
    kind = case["epilogue"]
    value = value * 0.125 if kind == "scale" else torch.relu(value) if kind == "relu" else value
    if rest:
        value = value + rest[0]
    gelu = {"bias_gelu": "none", "bias_tanh_gelu": "tanh"}.get(kind)
    value = functional.gelu(value, approximate=gelu) if gelu else value
    value = functional.silu(value) if kind == "bias_silu" else value
    return value + rest[1] if len(rest) > 1 else value


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return cuBLAS with the weight in either layout; with an epilogue cublasLt's own where torch has it."""
    import torch

    kind, a, b = case["epilogue"], given[0], given[1]
    if kind != "none":
        weight = b[0] if case["n_major"] else b[0].t()
        bias = given[2].to(a.dtype)  # once: torch wants it in the operands' dtype

        def fused() -> Any:
            if kind == "bias_tanh_gelu":
                return torch._addmm_activation(bias, a[0], weight, use_gelu=True)
            product = torch.addmm(bias, a[0], weight)
            return torch.nn.functional.gelu(product) if kind == "bias_gelu" else product.add_(given[3][0])

        return {"cublasLt": fused}
    if case["batch"] > 1:
        return {"cublas": lambda: torch.matmul(a, b if case["n_major"] else b.transpose(1, 2), out=out)}
    plain = b[0] if case["n_major"] else b[0].t()
    # The same numbers, read as the other layout.
    other = b[0].view(case["n"], case["k"]).t() if case["n_major"] else b[0].view(case["k"], case["n"])
    return {
        "cublas": lambda: torch.mm(a[0], plain, out=out[0]),
        "cublas, other layout": lambda: torch.mm(a[0], other, out=out[0]),
    }

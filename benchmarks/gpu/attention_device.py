"""Attention on the device: inputs, the fp64 reference and SDPA for a case of `attention_cases` as JSON has it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_LOWEST = -3.4028234663852886e38


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return 1.2e-3 if case["dtype"] == "float16" else 9e-3


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return tuple(case["result"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations (of causal attention half of them), and bytes read and written."""
    flops = 4.0 * case["batch"] * case["heads"] * case["queries"] * case["keys"] * case["head"]
    size = 2.0 * (sum(prod(shape) for shape, _ in case["shapes"]) + prod(case["result"]))
    return flops / (2 if case["causal"] is not None else 1), size


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU; masks hide some keys, and all of one row."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    made = [
        torch.randn(shape, device=device, generator=draw).mul_(1.5).to(getattr(torch, dtype))
        for shape, dtype in case["shapes"]
        if dtype != "bool"
    ]
    tensors, mask = (1 if case["layout"] == "merged" else 3), case["mask"]
    if mask == "keys":
        hidden = torch.zeros(case["shapes"][-1][0], device=device)
        for row in range(case["batch"]):
            hidden[row, ..., max(1, case["keys"] - 1 - (row * 37) % case["keys"]) :] = _LOWEST
        return [*made[:tensors], hidden]
    chance = torch.rand(case["shapes"][-1][0], device=device, generator=draw)
    if mask in ("full", "low"):
        made[-1].masked_fill_(chance < 0.2, float("-inf"))
        if case["queries"] > 2:
            made[-1][..., 1, :] = float("-inf")
    elif mask == "where":
        seen = chance < 0.7
        if case["queries"] > 2:
            seen[..., 1, :] = False
        made.append(seen)
    return made


def _heads(case: dict[str, Any], given: list[Any]) -> list[Any]:
    """Q, K and V as [batch, head, row, column]."""
    batch, heads, shared, head = case["batch"], case["heads"], case["shared"] or case["heads"], case["head"]
    if case["layout"] == "merged":
        x = given[0].view(batch, case["queries"], heads + 2 * shared, head).transpose(1, 2)
        return [x[:, :heads], x[:, heads : heads + shared], x[:, heads + shared :]]
    if case["layout"] == "bshd":
        return [x.view(batch, x.shape[1], -1, head).transpose(1, 2) for x in given[:3]]
    return given[:3] if case["layout"] == "bhsd" else [x.view(batch, -1, x.shape[1], head) for x in given[:3]]


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64, of large ones in fp32; a row without a softmax is NaN where the case says so."""
    import torch

    many = case["batch"] * case["heads"] * case["queries"] * case["keys"] > 1 << 28
    dtype = torch.float32 if many else torch.float64
    q, k, v = (x.to(dtype) for x in _heads(case, given))
    group = case["heads"] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (case["scale"] or case["head"] ** -0.5)
    if case["mask"] == "where":
        scores = torch.where(given[-1], scores, torch.tensor(_LOWEST, dtype=dtype, device=q.device))
    elif case["mask"] == "keys":
        scores = (scores.float() + given[-1].float()).to(dtype)  # so that the sum with the least float stays finite
    elif case["mask"] != "none":
        scores = scores + given[-1].to(dtype)
    if case["causal"] is not None:
        m, n = (torch.arange(case[name], device=q.device) for name in ("queries", "keys"))
        scores = scores.masked_fill(n > m[:, None] + case["causal"], float("-inf"))
    found = torch.softmax(scores, -1) @ v
    if case["masked"] != "nan":
        zero = torch.zeros((), dtype=dtype, device=q.device)
        found = torch.where(torch.isneginf(scores).all(-1, keepdim=True), zero, found)
    return (found if case["layout"] == "flat" else found.transpose(1, 2)).reshape(case["result"])


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return scaled_dot_product_attention by each of its backends; the caller drops those that fail."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = _heads(case, given)
    grouped = k.shape[1] != q.shape[1]
    mask = None
    if case["mask"] in ("keys", "full"):
        mask = given[-1].to(q.dtype).clamp_min(-60000.0)
    elif case["mask"] != "none":
        mask = given[-1]

    def by(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=case["causal"] is not None, enable_gqa=grouped
                )

        return call

    return {
        "flash": by(SDPBackend.FLASH_ATTENTION),
        "cudnn": by(SDPBackend.CUDNN_ATTENTION),
        "efficient": by(SDPBackend.EFFICIENT_ATTENTION),
    }

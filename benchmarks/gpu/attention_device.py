"""Attention on the device: inputs, the fp64 reference and SDPA for a case of `attention_cases` as JSON has it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_LOWEST = -3.4028234663852886e38


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm: of steps, some may fall the other way."""
    if case["scored"] or case["rounded"] or case["step"]:
        return 6e-3 if case["dtype"] == "float16" else 2e-2
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
    """Return random operands on the GPU; masks hide some keys, and all of one row. Then what it quantizes by."""
    import torch

    numbers = [torch.tensor(value, dtype=getattr(torch, dtype), device=device) for _, dtype, value in case["numbers"]]
    shapes = case["shapes"][: len(case["shapes"]) - len(numbers)]
    return [*_operands(case, shapes, seed, device), *numbers]


def _operands(case: dict[str, Any], shapes: list[Any], seed: int, device: str) -> list[Any]:
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    if case["page"]:
        return [*_paged(shapes[:4], draw, device), *_operands(case | {"page": 0}, shapes[4:], seed + 1, device)]
    made = [
        torch.randn(shape, device=device, generator=draw).mul_(1.5).to(getattr(torch, dtype))
        for shape, dtype in shapes
        if dtype != "bool"
    ]
    mask = case["mask"]
    if mask == "none":
        return made
    if mask == "keys":
        hidden = torch.zeros(shapes[-1][0], device=device)
        for row in range(case["batch"]):
            hidden[row, ..., max(1, case["keys"] - 1 - (row * 37) % case["keys"]) :] = _LOWEST
        return [*made[:-1], hidden]
    chance = torch.rand(shapes[-1][0], device=device, generator=draw)
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


def _paged(shapes: list[Any], draw: Any, device: str) -> list[Any]:
    """Queries, two caches, and a table of their pages, of which some are not in the cache."""
    import torch

    made = [
        torch.randn(shape, device=device, generator=draw).mul_(1.5).to(getattr(torch, dtype))
        for shape, dtype in shapes[:3]
    ]
    (size, dtype), pages = shapes[3], shapes[1][0][0]
    table = torch.randint(-3, pages + 3, size, device=device, generator=draw)
    return [*made, table.to(getattr(torch, dtype))]


def _gathered(cache: Any, table: Any, case: dict[str, Any]) -> Any:
    """Keys or values as [batch, head, row, column], from the pages that the table names, clipped into the cache."""
    taken = cache[table.long().clamp(0, cache.shape[0] - 1)]
    rows = taken.transpose(2, 3) if case["layout"] == "bhsd" else taken
    return rows.flatten(1, 2)[:, : case["keys"]].transpose(1, 2)


def _heads(case: dict[str, Any], given: list[Any]) -> list[Any]:
    """Q, K and V as [batch, head, row, column]."""
    batch, heads, shared, head = case["batch"], case["heads"], case["shared"] or case["heads"], case["head"]
    if case["page"]:
        query = given[0] if case["layout"] == "bhsd" else given[0].view(batch, -1, heads, head).transpose(1, 2)
        return [query, *(_gathered(cache, given[3], case) for cache in given[1:3])]
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
    mask = given[-1 - len(case["numbers"])]
    scores = q @ k.transpose(-1, -2) * (case["scale"] or case["head"] ** -0.5)
    if case["scored"]:
        scores = torch.clamp(torch.round(scores / case["scored"]), -128, 127) * case["scored"]
    if case["mask"] == "where":
        scores = torch.where(mask, scores, torch.tensor(_LOWEST, dtype=dtype, device=q.device))
    elif case["mask"] == "keys":
        scores = (scores.float() + mask.float()).to(dtype)  # so that the sum with the least float stays finite
    elif case["mask"] != "none":
        scores = scores + mask.to(dtype)
    if case["causal"] is not None:
        m, n = (torch.arange(case[name], device=q.device) for name in ("queries", "keys"))
        scores = scores.masked_fill(n > m[:, None] + case["causal"], float("-inf"))
    weights = torch.softmax(scores, -1)
    if case["rounded"]:
        steps = torch.clamp(torch.round(weights / case["rounded"]), 0, 255)
        weights = (steps * case["rounded"]).to(given[0].dtype).to(dtype)
    found = weights @ v
    if case["masked"] != "nan":
        zero = torch.zeros((), dtype=dtype, device=q.device)
        found = torch.where(torch.isneginf(scores).all(-1, keepdim=True), zero, found)
    if case["step"]:
        zero, low = {"uint8": (128, 0), "int8": (3, -128)}[case["out"]]
        found = torch.clamp(torch.round(found / case["step"]) + zero, low, low + 255)
    return (found if case["layout"] == "flat" else found.transpose(1, 2)).reshape(case["result"])


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return scaled_dot_product_attention by each of its backends; the caller drops those that fail."""
    from torch.nn import functional
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = _heads(case, given)
    grouped = k.shape[1] != q.shape[1]
    mask, given_mask = None, given[-1 - len(case["numbers"])]
    if case["mask"] in ("keys", "full"):
        mask = given_mask.to(q.dtype).clamp_min(-60000.0)
    elif case["mask"] != "none":
        mask = given_mask

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

"""Convolutions of bytes on the device: inputs, the reference and cuDNN for a case of `conv_bytes_cases`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from benchmarks.gpu.gemm_bytes_device import bytes_of, finished, fused, size_of, tolerance

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return (case["image"][0], *case["size"], case["filters"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written."""
    elements, weight = prod(result(case)[0]), prod(case["weight"])
    flops = 2.0 * elements * weight / case["filters"]
    return flops, float(prod(case["image"]) + weight + size_of(case) * elements)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU, in the order of the kernel's parameters; all values of a byte come up."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)
    depth = prod(case["weight"]) // case["filters"]
    return bytes_of(draw, case["left"], case["image"], case["weight"]) + fused(draw, case, result(case)[0], depth)


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result by floats that have the sums of bytes exactly: fp64."""
    import torch

    image, weight = (x.to(torch.float64) for x in given[:2])
    above, left, below, right = case["padding"]
    x = torch.nn.functional.pad(image.permute(0, 3, 1, 2), (left, right, above, below))
    filters = weight.permute(2, 3, 0, 1).contiguous()
    sums = torch.nn.functional.conv2d(x, filters, None, tuple(case["strides"]), 0, tuple(case["dilation"]))
    return finished(case, sums.permute(0, 2, 3, 1), given[2:])


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return cuDNN's convolution of fp16 images in NHWC, which a quantized model replaces."""
    import torch
    from torch.nn import functional

    torch.backends.cudnn.benchmark = True
    x = given[0].to(torch.float16).permute(0, 3, 1, 2)
    weight = given[1].to(torch.float16).permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last)
    rest = (tuple(case["strides"]), tuple(case["padding"][:2]), tuple(case["dilation"]))
    return {"cudnn, fp16": lambda: functional.conv2d(x, weight, None, *rest)}

"""Convolutions on the device: inputs, the reference and cuDNN for a case of `conv_cases` as JSON has it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

__all__ = ["inputs", "peers", "reference", "result", "tolerance", "work"]

_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 3e-5}
_PARTS = 3e-6
"""The bound where operands and result are fp32, however they are multiplied."""


def tolerance(case: dict[str, Any]) -> float:
    """Return the largest error relative to the reference, in norm."""
    return _PARTS if case["dtype"] == case["out"] == "float32" else _TOLERANCE[case["out"]]


def result(case: dict[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of the result."""
    return (case["image"][0], *case["size"], case["filters"]), case["out"]


def work(case: dict[str, Any]) -> tuple[float, float]:
    """Return operations, and bytes read and written."""
    shape, _ = result(case)
    taps, depth = prod(case["kernel"]), 1 if case["kind"] not in ("taps", "rows", "pointwise") else case["image"][3]
    residual = prod(shape) if "residual" in case["epilogue"] else 0
    return 2.0 * prod(shape) * taps * depth, 2.0 * (prod(case["image"]) + prod(shape) + prod(case["weight"]) + residual)


def inputs(case: dict[str, Any], seed: int, device: str = "cuda") -> list[Any]:
    """Return random operands on the GPU: image, weight, bias, residual, those that there are."""
    import torch

    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device=device, generator=draw)

    dtype = getattr(torch, case["dtype"])
    made = [normal(*case["image"]).to(dtype)]
    if case["weight"]:
        depth = 1 if case["kind"] == "depthwise" else case["image"][3]
        made.append((normal(*case["weight"]) * (prod(case["kernel"]) * depth) ** -0.5).to(dtype))
    if "bias" in case["epilogue"]:
        made.append(normal(1, 1, 1, case["filters"]))
    if "residual" in case["epilogue"]:
        made.append(normal(*result(case)[0]).to(dtype))
    return made


def _weight(case: dict[str, Any], weight: Any) -> Any:
    """The weight by filters, channels, rows and columns."""
    kind = case["kind"]
    if kind == "pointwise":
        return weight[:, :, None, None]
    if kind == "depthwise":
        return weight.permute(2, 0, 1)[:, None]
    return weight.permute(2, 3, 0, 1) if kind == "taps" else weight.permute(1, 3, 0, 2)


def reference(case: dict[str, Any], given: list[Any]) -> Any:
    """Return the result in fp64, of large ones in fp32."""
    import torch
    from torch.nn import functional

    wide = torch.float64 if work(case)[0] < 1 << 30 or case["dtype"] == "float32" else torch.float32
    image, *rest = (x.to(wide) for x in given)
    above, left, below, right = case["padding"]
    kind, kernel = case["kind"], tuple(case["kernel"])
    strides, dilation = tuple(case["strides"]), tuple(case["dilation"])
    outside = -float("inf") if kind == "max" else 0.0
    x = functional.pad(image.permute(0, 3, 1, 2), (left, right, above, below), value=outside)
    if kind == "max":
        value = functional.max_pool2d(x, kernel, strides, 0, dilation)
    elif kind == "sum":
        value = functional.avg_pool2d(x, kernel, strides)
    elif kind == "pixels":
        value = x.mean((2, 3), keepdim=True)
    else:
        groups = case["image"][3] if kind == "depthwise" else 1
        weight = _weight(case, rest.pop(0)).contiguous()
        value = functional.conv2d(x, weight, None, strides, 0, dilation, groups)
    value = value.permute(0, 2, 3, 1)
    for each in rest:
        value = value + each
    value = torch.relu(value) if "relu" in case["epilogue"] else value
    return value.clamp(0, 6) if "clip" in case["epilogue"] else value


def peers(case: dict[str, Any], given: list[Any], out: Any) -> dict[str, Callable[[], Any]]:
    """Return cuDNN's convolution in NHWC, without the bias and the activation behind ours.

    Where ours adds a residual, which is as large as the result, cuDNN adds it too: fused, and after the convolution.
    """
    import torch
    from torch.nn import functional

    torch.backends.cudnn.benchmark = True
    last = torch.channels_last
    kind, kernel, strides = case["kind"], tuple(case["kernel"]), tuple(case["strides"])
    padding, dilation = tuple(case["padding"][:2]), tuple(case["dilation"])
    x = given[0].permute(0, 3, 1, 2)
    if kind == "max":
        return {"torch": lambda: functional.max_pool2d(x, kernel, strides, padding)}
    if kind == "pixels":
        return {"torch": lambda: x.mean((2, 3), keepdim=True)}
    weight = _weight(case, given[1]).contiguous(memory_format=last)
    if kind == "rows":  # the stem as a network has it: three channels, and the padding not in the image
        half, width = kernel[1] // 2, case["image"][2] - 2 * (kernel[1] // 2)
        x = x[:, :3, :, half : half + width].contiguous(memory_format=last)
        weight = weight[:, :3].contiguous(memory_format=last)
        padding = (half, half)
    groups = case["image"][3] if kind == "depthwise" else 1
    if "residual" in case["epilogue"]:
        bias, residual = given[2].flatten().to(x.dtype), given[3].permute(0, 3, 1, 2)
        rest = (strides, padding, dilation, groups)
        return {
            "cudnn, fused": lambda: torch.cudnn_convolution_add_relu(x, weight, residual, 1.0, bias, *rest),
            "cudnn, then add": lambda: functional.conv2d(x, weight, bias, *rest).add_(residual).relu_(),
        }
    return {"cudnn": lambda: functional.conv2d(x, weight, None, strides, padding, dilation, groups)}

"""The operators: each as Relax, as torch for its numbers, and the work that a user asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FAMILIES", "Case", "cases"]


@dataclass(frozen=True)
class Case:
    """One operator at one size, in fp32 unless `operands` says of what its inputs and its weights are.

    `inputs` and `weights` are shapes; `relax` and `torch` make the result of both. `flops` counts a multiply-add as
    two, and convolutions as direct ones; None where bytes bound in any case. Kernels with `before` in their names make
    the operator's input and do not count.
    """

    family: str
    label: str
    inputs: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...]
    relax: Callable[..., Any]
    torch: Callable[..., Any]
    flops: int | None = None
    before: str = ""
    operands: tuple[str, str] = ("float32", "float32")


def cases(families: Sequence[str] = ()) -> list[Case]:
    """Those of these families, or all."""
    return [case for family in families or FAMILIES for case in FAMILIES[family]()]


def _gemms() -> list[Case]:
    sizes = [
        (64, 512, 512),
        (64, 768, 768),
        (128, 768, 768),
        (128, 768, 2304),
        (128, 768, 3072),
        (128, 3072, 768),
        (197, 768, 3072),
        (196, 384, 1536),
        (1024, 768, 3072),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
        (4096, 4096, 4096),
    ]
    return [_gemm("gemm", *size) for size in sizes]


def _gemvs() -> list[Case]:
    sizes = [(768, 3072), (2048, 1000), (768, 50257), (4096, 4096), (4096, 11008)]
    return [_gemm("gemv", 1, *size) for size in sizes]


def _gemm(family: str, m: int, k: int, n: int) -> Case:
    """`x @ w + b`"""
    return Case(
        family,
        f"{m}x{k}x{n}",
        ((m, k),),
        ((k, n), (n,)),
        lambda x, w, b: _op().add(_op().matmul(x, w), b),
        lambda x, w, b: x @ w + b,
        2 * m * k * n,
    )


def _gemms_of_bytes() -> list[Case]:
    """`x @ w` of uint8 and int8, summed in int32."""
    return _gemms_of("gemm_int8", ("uint8", "int8"), "int32", lambda x, w: (x.double() @ w.double()).int())


def _gemms_of_bfloat16() -> list[Case]:
    """`x @ w` of bfloat16, summed in fp32."""
    return _gemms_of("gemm_bf16", ("bfloat16", "bfloat16"), "float32", lambda x, w: x @ w)


def _gemms_of(family: str, operands: tuple[str, str], sums: str, torch: Callable[..., Any]) -> list[Case]:
    def case(m: int, k: int, n: int) -> Case:
        return Case(
            family,
            f"{m}x{k}x{n}",
            ((m, k),),
            ((k, n),),
            lambda x, w: _op().matmul(x, w, out_dtype=sums),
            torch,
            2 * m * k * n,
            operands=operands,
        )

    return [case(*size) for size in ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (1024, 1024, 1024))]


# (input channels, output channels, kernel, stride, height of the input): every distinct one of ResNet-50.
_RESNET50 = [
    (3, 64, 7, 2, 224),
    *((64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 64, 1, 1, 56)),
    *((256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28), (256, 512, 1, 2, 56)),
    *((512, 128, 1, 1, 28), (128, 128, 3, 1, 28)),
    *((512, 256, 1, 1, 28), (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28)),
    *((1024, 256, 1, 1, 14), (256, 256, 3, 1, 14)),
    *((1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7), (1024, 2048, 1, 2, 14)),
    *((2048, 512, 1, 1, 7), (512, 512, 3, 1, 7)),
]

# (channels, stride, height of the input): every distinct one of MobileNetV2.
_MOBILENET = [
    *((32, 1, 112), (96, 2, 112), (144, 1, 56), (144, 2, 56), (192, 1, 28), (192, 2, 28), (384, 1, 14)),
    *((576, 1, 14), (576, 2, 14), (960, 1, 7)),
]


def _convs() -> list[Case]:
    return [_conv("conv", i, o, kernel, stride, size, 1) for i, o, kernel, stride, size in _RESNET50]


def _depthwise() -> list[Case]:
    return [_conv("depthwise", c, c, 3, stride, size, c) for c, stride, size in _MOBILENET]


def _conv(family: str, i: int, o: int, kernel: int, stride: int, size: int, groups: int) -> Case:
    """`relu(conv(x, w) + b)`"""
    pad, out = kernel // 2, (size - 1) // stride + 1

    def relax(x: Any, w: Any, b: Any) -> Any:
        made = _op().nn.conv2d(x, w, strides=stride, padding=pad, groups=groups)
        return _op().nn.relu(_op().add(made, _op().reshape(b, (1, o, 1, 1))))

    def torch(x: Any, w: Any, b: Any) -> Any:
        return _functional().conv2d(x, w, b, stride, pad, 1, groups).relu()

    flops = 2 * o * out * out * (i // groups) * kernel * kernel
    label = f"{i}->{o} {kernel}x{kernel}/{stride} {size}x{size}"
    return Case(family, label, ((1, i, size, size),), ((o, i // groups, kernel, kernel), (o,)), relax, torch, flops)


def _softmax() -> list[Case]:
    shapes = [(12, 128, 128), (12, 197, 197), (12, 1024, 1024), (32, 1024, 2048)]
    return [Case("softmax", _name(s), (s,), (), lambda x: _op().nn.softmax(x), lambda x: x.softmax(-1)) for s in shapes]


def _layer_norm() -> list[Case]:
    def case(rows: int, width: int) -> Case:
        return Case(
            "layer_norm",
            f"{rows}x{width}",
            ((rows, width),),
            ((width,), (width,)),
            lambda x, g, b: _op().nn.layer_norm(x, g, b, axes=[-1]),
            lambda x, g, b: _functional().layer_norm(x, (width,), g, b),
        )

    return [case(*size) for size in ((128, 768), (197, 768), (3136, 96), (8192, 1024), (65536, 768))]


def _rms_norm() -> list[Case]:
    def case(rows: int, width: int) -> Case:
        return Case(
            "rms_norm",
            f"{rows}x{width}",
            ((rows, width),),
            ((width,),),
            lambda x, g: _op().nn.rms_norm(x, g, axes=[-1]),
            lambda x, g: _functional().rms_norm(x, (width,), g, 1e-5),
        )

    return [case(*size) for size in ((128, 2048), (4096, 4096), (16384, 4096))]


def _elementwise() -> list[Case]:
    shapes = [(1, 256, 56, 56), (128, 3072), (64, 1024, 1024)]
    adds = [
        Case(
            "elementwise",
            f"relu(a+b) {_name(s)}",
            (s, s),
            (),
            lambda a, b: _op().nn.relu(_op().add(a, b)),
            lambda a, b: (a + b).relu(),
        )
        for s in shapes
    ]
    gelus = [
        Case("elementwise", f"gelu {_name(s)}", (s,), (), lambda x: _op().nn.gelu(x), lambda x: _functional().gelu(x))
        for s in shapes[1:]
    ]
    return [*adds, *gelus]


def _transposes() -> list[Case]:
    table: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((1, 128, 12, 64), (0, 2, 1, 3)),
        ((1, 64, 56, 56), (0, 2, 3, 1)),
        ((1, 56, 56, 96), (0, 3, 1, 2)),
        ((4096, 4096), (1, 0)),
        ((8192, 8192), (1, 0)),
    ]

    def case(shape: tuple[int, ...], axes: tuple[int, ...]) -> Case:
        label = f"{_name(shape)} to {','.join(map(str, axes))}"
        permute = list(axes)
        return Case(
            "transpose",
            label,
            (shape,),
            (),
            lambda x: _op().permute_dims(x, permute),
            lambda x: x.permute(permute).contiguous(),
        )

    return [case(shape, axes) for shape, axes in table]


def _attention() -> list[Case]:
    def case(heads: int, tokens: int, width: int) -> Case:
        scale = 1 / math.sqrt(width)
        shape = (1, heads, tokens, width)

        def relax(q: Any, k: Any, v: Any) -> Any:
            scores = _op().multiply(_op().matmul(q, _op().permute_dims(k, [0, 1, 3, 2])), _const(scale))
            return _op().matmul(_op().nn.softmax(scores, -1), v)

        def torch(q: Any, k: Any, v: Any) -> Any:
            return _functional().scaled_dot_product_attention(q, k, v)

        return Case("attention", _name(shape), (shape,) * 3, (), relax, torch, 4 * heads * tokens * tokens * width)

    return [case(*size) for size in ((12, 64, 64), (12, 128, 64), (12, 197, 64), (12, 1024, 64), (16, 2048, 128))]


def _pools() -> list[Case]:
    """Behind a depthwise 1x1 convolution, whose kernel does not count: in a network they are on its blocked layout."""

    def case(label: str, shape: tuple[int, ...], relax: Callable[..., Any], torch: Callable[..., Any]) -> Case:
        channels = shape[1]

        def relax_after(x: Any, w: Any) -> Any:
            return relax(_op().nn.conv2d(x, w, groups=channels))

        def torch_after(x: Any, w: Any) -> Any:
            return torch(_functional().conv2d(x, w, groups=channels))

        weights = ((channels, 1, 1, 1),)
        return Case("pool", f"{label} {_name(shape)}", (shape,), weights, relax_after, torch_after, before="conv")

    def maximum(shape: tuple[int, ...]) -> Case:
        return case(
            "max 3x3/2",
            shape,
            lambda x: _op().nn.max_pool2d(x, (3, 3), (2, 2), (1, 1)),
            lambda x: _functional().max_pool2d(x, 3, 2, 1),
        )

    def average(shape: tuple[int, ...]) -> Case:
        return case(
            "global mean",
            shape,
            lambda x: _op().mean(x, [2, 3], keepdims=True),
            lambda x: x.mean((2, 3), keepdim=True),
        )

    return [maximum((1, 64, 112, 112)), maximum((8, 64, 112, 112)), average((1, 2048, 7, 7)), average((1, 1280, 7, 7))]


def _op() -> Any:
    from tvm import relax

    return relax.op


def _const(value: float) -> Any:
    from tvm import relax

    return relax.const(value, "float32")


def _functional() -> Any:
    import torch.nn.functional

    return torch.nn.functional


def _name(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


FAMILIES: dict[str, Callable[[], list[Case]]] = {
    "gemm": _gemms,
    "conv": _convs,
    "depthwise": _depthwise,
    "gemm_bf16": _gemms_of_bfloat16,
    "gemm_int8": _gemms_of_bytes,
    "gemv": _gemvs,
    "attention": _attention,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "elementwise": _elementwise,
    "transpose": _transposes,
    "pool": _pools,
}

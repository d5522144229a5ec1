"""Convolutions of one to three dims, forward and transposed, accumulated in float32 for 16-bit floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from relaxc.service.frontend.pt2.emit import HALF, Emitter
from relaxc.service.frontend.pt2.ops.registry import converts

__all__: list[str] = []

op = relax.op

_FORWARD = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}
_TRANSPOSED = {1: op.nn.conv1d_transpose, 2: op.nn.conv2d_transpose, 3: op.nn.conv3d_transpose}


@converts("aten.convolution.default")
def _convolution(
    em: Emitter,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """NC… data, OI… weights (IO… transposed); the bias is added by channel."""
    rank = em.rank(weight) - 2
    unbatched = em.rank(x) == rank + 1
    if unbatched:
        x = em.reshape(x, [1, *em.shape(x)])
    attributes: dict[str, Any] = {
        "strides": _each(stride, rank),
        "padding": _each(padding, rank) * 2,
        "dilation": _each(dilation, rank),
        "groups": groups,
    }
    if transposed:
        attributes["output_padding"] = _each(output_padding, rank)
        if any(map(int.__ge__, attributes["output_padding"], attributes["strides"])):
            raise em.refuse("an output padding that is not less than the stride")
    function = (_TRANSPOSED if transposed else _FORWARD)[rank]
    dtype = em.out_dtype()
    result = em(function(x, weight, **attributes, out_dtype="float32" if dtype in HALF else dtype))
    result = em.cast(result, dtype)
    if bias is not None:
        result = em(op.add(result, em.reshape(bias, [1, -1] + [1] * rank)))
    return em.reshape(result, em.out_shape()) if unbatched else result


def _each(values: Sequence[int], rank: int) -> list[int]:
    return list(values) * rank if len(values) == 1 else list(values)

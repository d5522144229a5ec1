"""Zeros around the input of a convolution are the padding of the convolution."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import Scope, op_name, rewrite_calls

__all__ = ["FoldPad"]

_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_KEPT = ("strides", "dilation", "groups", "data_layout", "kernel_layout", "out_layout", "out_dtype")


@tvm.transform.module_pass(opt_level=0, name="FoldPad")
class FoldPad:
    """`conv(pad(x, widths, 0), W, padding=p) → conv(x, W, padding=p + widths)`, where only its sides are padded.

    Exporters write such a pad where the sides differ, as those of TensorFlow's `SAME` do. Templates pad in the cache.
    """

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with such convolutions; the same object if it has none."""
        return rewrite_calls(module, dict.fromkeys(_CONVOLUTIONS, _fold))


def _fold(call: relax.Call, scope: Scope) -> relax.Expr | None:
    pad = scope.call(call.args[0], "relax.nn.pad")
    if pad is None or str(pad.attrs.pad_mode) != "constant" or float(pad.attrs.pad_value) != 0.0:
        return None
    widths = [int(width) for width in pad.attrs.pad_width]
    pairs = dict(zip(str(call.attrs.data_layout), zip(widths[::2], widths[1::2], strict=True), strict=True))
    sides = [pairs.pop(axis) for axis in "DHW" if axis in pairs]
    if min(widths) < 0 or any(any(pair) for pair in pairs.values()):
        return None
    more = [before for before, _ in sides] + [after for _, after in sides]
    padding = [int(own) + width for own, width in zip(call.attrs.padding, more, strict=True)]
    kept = {name: getattr(call.attrs, name) for name in _KEPT}
    data, weight = pad.args[0], call.args[1]
    return getattr(relax.op.nn, op_name(call).rpartition(".")[2])(data, weight, padding=padding, **kept)

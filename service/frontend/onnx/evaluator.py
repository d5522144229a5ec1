"""The ONNX project's evaluator as a reference, with right operators in place of those that it computes wrongly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relaxc.service.codes import FORMATS
from relaxc.service.errors import ModelMalformed, UnsupportedModel
from relaxc.service.frontend.model import Reference
from relaxc.service.frontend.onnx.file import one_line
from relaxc.service.frontend.onnx.sessions import UNVERIFIED

__all__ = ["evaluated", "evaluator"]


def evaluator(model: Any) -> Any:
    """Return the evaluator of a model. Raise what it does for a model that it does not take."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model, new_ops=_operators())


def evaluated(model: Any, cause: Exception) -> Reference:
    """Return what runs a model in the evaluator, as ONNX Runtime refuses it for `cause`.

    Raise ModelMalformed where the evaluator does not take it either; a run raises UnsupportedModel where it fails. Both
    by whatever exception of its own: that says nothing of the model. What it gives as numbers are arrays of rank 0.
    """
    import numpy as np

    try:
        run_all = evaluator(model)
    except Exception as error:
        refused = f"ONNX Runtime refuses the model: {one_line(cause)}"
        raise ModelMalformed(refused, remedy=UNVERIFIED) from error
    names = list(run_all.output_names)

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {name: np.asarray(value) for name, value in zip(names, run_all.run(None, dict(inputs)), strict=True)}
        except Exception as error:
            told = f"no reference runs the model: {one_line(cause)}; the ONNX project's evaluator: {one_line(error)}"
            raise UnsupportedModel(told, remedy=UNVERIFIED) from error

    return run


def _operators() -> list[Any]:
    """Erf, which the evaluator rounds to float32, LRN, where it takes the batch for the channels, OneHot, of whose
    operands it does not cut off fractions, and quantizations to and from 8-bit floats, whose zero points it ignores.
    """
    import numpy as np
    import onnx
    from onnx.reference.op_run import OpRun
    from onnx.reference.ops import op_dequantize_linear, op_one_hot, op_quantize_linear
    from onnx.reference.ops._quant_utils import reshape_input

    class Erf(OpRun):  # type: ignore[misc]
        def _run(self, x: Any) -> tuple[Any]:
            return (np.vectorize(math.erf, otypes=["float64"])(x).astype(x.dtype),)

    class LRN(OpRun):  # type: ignore[misc]
        def _run(self, x: Any, alpha: float, beta: float, bias: float, size: int) -> tuple[Any]:
            before, behind = (size - 1) // 2, size // 2
            widths = [(0, 0), (before, behind), *[(0, 0)] * (x.ndim - 2)]
            squares = np.pad(np.square(x), widths)
            total = sum(squares[:, at : at + x.shape[1]] for at in range(size))
            return ((x / (bias + float(alpha) / size * total) ** float(beta)).astype(x.dtype),)

    class QuantizeLinear(op_quantize_linear._CommonQuantizeLinear):  # type: ignore[misc]
        def _run(self, x: Any, scale: Any, zero: Any = None, **given: Any) -> tuple[Any]:
            if zero is not None and has_float_codes(zero):
                places = x.shape, given.get("axis", 1), given.get("block_size", 0)
                scale, point = (reshape_input(each, *places) for each in (scale, zero.astype(scale.dtype)))
                given["output_dtype"] = onnx.helper.np_dtype_to_tensor_dtype(zero.dtype)
                x, scale, zero = x / scale + point, np.ones((), x.dtype), None
            return tuple(super()._run(x, scale, zero, **given))

    class DequantizeLinear(op_dequantize_linear._CommonDequantizeLinear):  # type: ignore[misc]
        def _run(self, x: Any, scale: Any, zero: Any = None, **given: Any) -> tuple[Any]:
            if zero is not None and has_float_codes(zero):
                point = reshape_input(
                    zero.astype(np.float32), x.shape, given.get("axis", 1), given.get("block_size", 0)
                )
                x, zero = x.astype(np.float32) - point, None
            return tuple(super()._run(x, scale, zero, **given))

    def has_float_codes(array: Any) -> bool:
        return str(array.dtype) in FORMATS and FORMATS[str(array.dtype)].is_float

    class OneHot(op_one_hot.OneHot):  # type: ignore[misc]
        def _run(self, indices: Any, depth: Any, values: Any, **given: Any) -> tuple[Any]:
            places, count = np.asarray(indices).astype(np.int64), np.asarray(depth).reshape(()).astype(np.int64)
            return tuple(super()._run(places, count, values, **given))

    return [Erf, LRN, OneHot, QuantizeLinear, DequantizeLinear]

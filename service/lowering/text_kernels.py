"""PrimFuncs that hold CUDA text: lowered as TIRx, beside the rest, which is S-TIR."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL

__all__ = ["lower_text_kernels", "split_text_kernels"]


def split_text_kernels(module: Any) -> tuple[Any, Any]:
    """Return the PrimFuncs with text, and all other functions, as two modules."""
    text: dict[Any, Any] = {}
    other: dict[Any, Any] = {}
    for var, func in module.functions.items():
        is_text = isinstance(func, tirx.PrimFunc) and func.attrs is not None and TEXT_KERNEL in func.attrs
        (text if is_text else other)[var] = func
    return tvm.IRModule(text, attrs=module.attrs), tvm.IRModule(other, attrs=module.attrs)


def lower_text_kernels(module: Any) -> Any:
    """Run TVM's list for TIRx, up to where host and device are split."""
    return tvm.ir.transform.Sequential(
        [
            tirx.transform.LowerTIRx(),
            s_tir.transform.UnifyThreadBinding(),
            tirx.transform.StmtSimplify(),
            tirx.transform.LowerTIRxOpaque(),
            tirx.transform.FlattenBuffer(),
            tirx.transform.BF16ComputeLegalize(),
            tirx.transform.NarrowDataType(32),
            tirx.transform.StmtSimplify(),
        ]
    )(module)

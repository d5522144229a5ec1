"""What a compile makes one kernel of: the PrimFunc of a module whose operators fuse into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["one_prim_func", "one_prim_func_of", "prim_func_of"]


def prim_func_of(module: Any, legalize: Any = None) -> Any:
    """Return the one PrimFunc that the IRModule `module` of Relax operators fuses to; `legalize` for other rules."""
    import tvm
    from tvm import relax

    passes = [relax.transform.LegalizeOps(legalize), relax.transform.AnnotateTIROpPattern()]
    passes += [relax.transform.FuseOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    (func,) = (
        func
        for _, func in tvm.transform.Sequential(passes)(module).functions_items()
        if isinstance(func, tvm.tirx.PrimFunc)
    )
    return func


def one_prim_func(shapes: Sequence[tuple[int, ...]], dtype: str, value: Callable[[list[Any]], Any]) -> Any:
    """Return the PrimFunc of `value` of operands of `shapes`, whatever would fuse of itself."""
    return one_prim_func_of([(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)], lambda _, xs: value(xs))


def one_prim_func_of(
    operands: Sequence[tuple[str, tuple[int, ...], str]], value: Callable[[Any, list[Any]], Any]
) -> Any:
    """Return the PrimFunc of `value`, of a BlockBuilder and the `operands` by name, shape and dtype."""
    import tvm
    from tvm import relax

    block = relax.BlockBuilder()
    inner, outer = (
        [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape, dtype in operands] for _ in range(2)
    )
    with block.function("fused", inner, attrs={"Primitive": True}, private=True):
        with block.dataflow():
            result = block.emit_output(block.normalize(value(block, inner)))
        block.emit_func_output(result)
    with block.function("main", outer):
        with block.dataflow():
            result = block.emit_output(relax.Call(block.get().get_global_var("fused"), outer))
        block.emit_func_output(result)
    passes = [relax.transform.LegalizeOps(), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    module = tvm.ir.transform.Sequential(passes)(block.get())
    (func,) = (func for _, func in module.functions_items() if isinstance(func, tvm.tirx.PrimFunc))
    return func

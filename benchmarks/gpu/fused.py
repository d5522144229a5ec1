"""What a compile makes one kernel of: the PrimFunc of a module whose operators fuse into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["one_prim_func", "one_prim_func_of", "opened", "prim_func_of"]

Shape = Sequence[Any]


def opened(sizes: Sequence[int]) -> Callable[[Shape], tuple[Any, ...]]:
    """Return what puts a variable in the place of each of these sizes in a shape, always the same one."""
    from tvm import tirx

    known = {size: tirx.Var(f"n{size}", "int64") for size in sizes}
    return lambda shape: tuple(known.get(size, size) for size in shape)


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


def one_prim_func(
    shapes: Sequence[tuple[int, ...]], dtype: str, value: Callable[[list[Any]], Any], sizes: Sequence[int] = ()
) -> Any:
    """Return the PrimFunc of `value` of operands of `shapes`, whatever would fuse of itself; as `one_prim_func_of`."""
    given = [(f"x{i}", shape, dtype) for i, shape in enumerate(shapes)]
    return one_prim_func_of(given, lambda _, xs: value(xs), sizes)


def one_prim_func_of(
    operands: Sequence[tuple[str, Shape, str]],
    value: Callable[[Any, list[Any]], Any],
    sizes: Sequence[int] = (),
    legalize: Any = None,
) -> Any:
    """Return the PrimFunc of `value`, of a BlockBuilder and the `operands` by name, shape and dtype.

    Each dim that is one of `sizes` is known at the call alone. `legalize` for other rules.
    """
    import tvm
    from tvm import relax

    block = relax.BlockBuilder()
    inner, outer = (
        [relax.Var(name, relax.TensorType(opening(shape), dtype)) for name, shape, dtype in operands]
        for opening in (opened(sizes), opened(sizes))
    )
    with block.function("fused", inner, attrs={"Primitive": True}, private=True):
        with block.dataflow():
            result = block.emit_output(block.normalize(value(block, inner)))
        block.emit_func_output(result)
    with block.function("main", outer):
        with block.dataflow():
            result = block.emit_output(relax.Call(block.get().get_global_var("fused"), outer))
        block.emit_func_output(result)
    passes = [relax.transform.LegalizeOps(legalize), relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    module = tvm.ir.transform.Sequential(passes)(block.get())
    (func,) = (func for _, func in module.functions_items() if isinstance(func, tvm.tirx.PrimFunc))
    return func

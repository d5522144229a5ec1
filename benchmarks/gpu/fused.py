"""What a compile makes one kernel of: the PrimFunc of a module whose operators fuse into one."""

from __future__ import annotations

from typing import Any

__all__ = ["prim_func_of"]


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

"""What must hold of a module between the phases; a pass that breaks it is found where it did."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax
from tvm.sym import Analyzer

from relaxc.service.errors import CompileFailed, RelaxcError

__all__ = ["Boundary", "check"]


class Boundary:
    """The types of `main`'s parameters and results, which no pass may change."""

    def __init__(self, module: IRModule) -> None:
        main = module["main"]
        self.parameters = [(var.name, var.ty) for var in main.params]
        self.results = _fields(main.ret_ty)


def _fields(ty: Any) -> list[Any]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def check(
    module: IRModule,
    boundary: Boundary,
    phase: str,
    failure: type[RelaxcError] = CompileFailed,
    *,
    types: bool = True,
) -> None:
    """Raise `failure` naming the phase if the module is not well-formed, or not the same from outside.

    With `types` the type of every expression is derived anew too, which takes 30 ms for a network of convolutions.
    """
    if "main" not in {str(gvar.name_hint) for gvar in module.get_global_vars()}:
        raise failure(f"phase {phase} removed the function main", stage="optimize", phase=phase)
    try:
        relax.analysis.well_formed(module, check_ty=types)
    except (RuntimeError, TypeError, ValueError) as error:
        message = f"phase {phase} left a module that is not well-formed: {error}"
        raise failure(message, stage="optimize", phase=phase) from error
    now = Boundary(module)
    if len(now.parameters) < len(boundary.parameters) or len(now.results) != len(boundary.results):
        raise failure(f"phase {phase} changed the number of inputs or outputs", stage="optimize", phase=phase)
    pairs = [
        *((name, old, new) for (name, old), (_, new) in zip(boundary.parameters, now.parameters, strict=False)),
        *((f"output {i}", *pair) for i, pair in enumerate(zip(boundary.results, now.results, strict=True))),
    ]
    for name, old, new in pairs:
        if not _same(old, new):
            raise failure(f"phase {phase} changed {name} from {old} to {new}", stage="optimize", phase=phase, name=name)


def _same(old: Any, new: Any) -> bool:
    """Equal dtype and rank, and no size that is provably another."""
    if not isinstance(old, relax.TensorType):
        return type(old) is type(new)
    if not isinstance(new, relax.TensorType) or str(old.dtype) != str(new.dtype) or old.ndim != new.ndim:
        return False
    if not isinstance(old.shape, relax.ShapeExpr) or not isinstance(new.shape, relax.ShapeExpr):
        return True
    analyzer = Analyzer()
    return not any(analyzer.can_prove(a != b) for a, b in zip(old.shape, new.shape, strict=True))

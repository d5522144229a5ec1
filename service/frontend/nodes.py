"""Which of a model's nodes each variable of the imported module comes from."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir import SourceName, Span

__all__ = ["Nodes"]


class Nodes:
    """Notes what nodes give as they are converted; what they compute on the way is for what they give."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def given(self, builder: Any, value: Any, name: str) -> Any:
        """Return what the node `name` gives, noted as its own unless it is another's."""
        if isinstance(value, relax.Var):
            self._names.setdefault(value, name)
        elif isinstance(value, relax.Call) and value.span is None:
            span = Span(SourceName(name), 0, 0, 0, 0)
            value = builder.normalize(relax.Call(value.op, value.args, value.attrs, value.ty_args, span))
        return value

    def noted(self, module: Any) -> Any:
        """Return the module whose variables have the names of their nodes as spans."""
        main, known = module["main"], dict[Any, Any]()
        for binding in [binding for block in main.body.blocks for binding in block.bindings]:
            var, span = binding.var, binding.value.span
            if var in self._names:
                span = Span(SourceName(self._names[var]), 0, 0, 0, 0)
            known[var] = var if span is None else type(var)(var.name, var.ty, span)

        def renamed(var: Any) -> Any:
            return known.get(var, var)

        module = module.clone()
        spanned = tvm_ffi.structural_map(main, (relax.Var, renamed), (relax.DataflowVar, renamed))
        module.update_func(module.get_global_var("main"), spanned)
        return module

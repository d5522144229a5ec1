"""Which of a model's nodes each variable of the imported module comes from."""

from __future__ import annotations

from typing import Any

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
        """Return the module with the node of each variable as an attribute, which the passes take off."""
        return module.with_attr("relaxc.nodes", self._names)

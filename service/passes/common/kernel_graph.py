"""Which kernel of `main` reads what which other wrote, for people to look at."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import op_name

__all__ = ["kernel_graph"]


def kernel_graph(module: IRModule) -> dict[str, Any]:
    """Return the calls of `main` in order, as JSON values, the weights left out.

    Values are numbered: `main`'s inputs first (`inputs` of them), then one for each call. `calls` are pairs of a
    PrimFunc's name and the values that it reads, `results` the values that each output comes from. What is no kernel
    (a view, a shape) stands for what it is made of; kernels inside a branch or a loop body are not listed.
    """
    main = module["main"]
    count = int(main.attrs["num_input"]) if main.attrs and "num_input" in main.attrs else len(main.params)
    sources: dict[Any, set[int]] = {param: {number} for number, param in enumerate(main.params[:count])}
    calls: list[list[Any]] = []
    for binding in [binding for block in main.body.blocks for binding in block.bindings]:
        value = binding.value
        read = _read(value, sources)
        if op_name(value) in ("relax.call_tir", "relax.call_tir_inplace"):
            sources[binding.var] = {count + len(calls)}
            calls.append([str(value.args[0].name_hint), sorted(read)])
        else:
            sources[binding.var] = read
    return {"inputs": count, "calls": calls, "results": [sorted(_read(field, sources)) for field in _fields(main)]}


def _read(expr: relax.Expr, sources: dict[Any, set[int]]) -> set[int]:
    return set().union(*(sources.get(var, set()) for var in relax.analysis.free_vars(expr)))


def _fields(main: relax.Function) -> list[relax.Expr]:
    """The outputs: the fields of the tuple that is the result, whose variable the last block binds."""
    result = main.body.body
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    result = bound.get(result, result)
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]

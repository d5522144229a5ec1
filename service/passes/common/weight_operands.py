"""Which operands of the kernels are weights, for whoever times a kernel apart from its model."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from relaxc.service.passes.common.rewrite import op_name

__all__ = ["weight_operands"]


def weight_operands(module: IRModule) -> dict[str, tuple[int, ...]]:
    """Return by the name of each PrimFunc, the positions of the parameters that are weights in all of its calls.

    Those of an optimized module, whose last parameter holds the weights; a view of a weight is one. Kernels inside a
    branch or a loop body are left out: what they read may be read again at once.
    """
    main = module["main"]
    weights: set[Any] = set(main.params[int(main.attrs["num_input"]) :])
    found: dict[str, tuple[int, ...]] = {}
    for binding in [binding for block in main.body.blocks for binding in block.bindings]:
        value = binding.value
        if op_name(value) == "relax.call_tir":
            name = str(value.args[0].name_hint)
            operands = tuple(i for i, operand in enumerate(value.args[1].fields) if operand in weights)
            found[name] = tuple(i for i in found.get(name, operands) if i in operands)
        elif (read := relax.analysis.free_vars(value)) and all(var in weights for var in read):
            weights.add(binding.var)
    return found

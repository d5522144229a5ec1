"""Kernels that take what the VM itself has made do not check it again.

TVM has each kernel compare kind, dimensions, dtype, sizes, strides, alignment and device of every argument at every
call, with a text for each that may differ: half of the code of many kernels, and a fifth of what they take to build.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst, GlobalVar

from relaxc.schedules.ir.tir import collect

__all__ = ["SkipTrustedChecks", "trust_arguments"]

_TRUSTED = "relaxc.trusted_arguments"
_ALLOCATES = "relax.vm.alloc_tensor"


def trust_arguments(module: Any) -> Any:
    """Mark the kernels of a module for the VM whose every argument in every call is the VM's own tensor, a weight, or a
    constant of the executable.

    Those tensors have the sizes and dtypes that the kernel is for, which is compared here. What reads an input of the
    model checks it as ever, and so does what has symbolic sizes, numbers as arguments, or checks of its own.
    """
    found = _Calls(module)
    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            found.look_into(function)
    module = module.clone()
    for name in sorted(found.called - found.doubtful):
        module.update_func(module.get_global_var(name), module[name].with_attr(_TRUSTED, True))
    return module


class _Calls:
    """Which PrimFuncs are called, and which of them by somebody, or in a way, that is not to be trusted."""

    def __init__(self, module: Any) -> None:
        self.called: set[str] = set()
        self.doubtful: set[str] = set()
        self._kernels = {
            str(var.name_hint): function
            for var, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }
        for name, function in self._kernels.items():
            for node in collect(function.body, (GlobalVar, tirx.AssertStmt)):
                self.doubtful.add(str(node.name_hint) if isinstance(node, GlobalVar) else name)

    def look_into(self, function: relax.Function) -> None:
        """Note the calls of a function, those in its branches too."""
        own = _own_tensors(function)
        for expr in collect(function.body, (relax.Call, relax.Tuple)):
            if isinstance(expr, relax.Call) and isinstance(expr.op, GlobalVar):
                self._note(str(expr.op.name_hint), list(expr.args), own)
            held = expr.args if isinstance(expr, relax.Call) else expr.fields
            self.doubtful.update(str(each.name_hint) for each in held if isinstance(each, GlobalVar))

    def _note(self, name: str, arguments: list[Any], own: set[Any]) -> None:
        kernel = self._kernels.get(name)
        if kernel is None:
            return
        self.called.add(name)
        pairs = zip(kernel.params, arguments, strict=False)
        known = [(arg in own or isinstance(arg, GenericConst)) and _fits(arg, param) for param, arg in pairs]
        if len(kernel.params) != len(arguments) or not all(known):
            self.doubtful.add(name)


def _own_tensors(function: relax.Function) -> set[Any]:
    """The variables of what the VM allocates for the function, and of its weights, which the runtime has loaded."""
    inputs = function.attrs.get("num_input") if function.attrs else None
    weights = set(function.params[int(inputs) :]) if inputs is not None else set()
    own = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            allocated = isinstance(value, relax.Call) and getattr(value.op, "name", "") == _ALLOCATES
            if allocated or (isinstance(value, relax.TupleGetItem) and value.tuple_value in weights):
                own.add(binding.var)
    return own


def _fits(argument: Any, param: Any) -> bool:
    """Whether the tensor has just the constant sizes and the dtype that the kernel's parameter has."""
    shape = getattr(argument.ty, "shape", None)
    if not tirx.is_buffer_var(param) or not isinstance(shape, relax.ShapeExpr):
        return False
    sizes = [list(shape), list(param.shape)]
    if not all(hasattr(dim, "value") for dims in sizes for dim in dims):
        return False
    given, wanted = ([int(dim) for dim in dims] for dims in sizes)
    return given == wanted and str(argument.ty.dtype) == str(param.dtype)


@tvm.transform.module_pass(opt_level=0, name="relaxc.SkipTrustedChecks")
class SkipTrustedChecks:
    """Takes the checks of arguments out of what `trust_arguments` has marked, once they are there."""

    def transform_module(self, module: Any, context: Any) -> Any:
        """Return the module with the checks of the others alone."""
        marked = {var: f for var, f in module.functions_items() if f.attrs and f.attrs.get(_TRUSTED)}
        if not marked:
            return module
        module = module.clone()
        module.update(tirx.transform.SkipAssert()(tvm.IRModule(marked)))
        return module

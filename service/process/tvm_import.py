"""What `import tvm` does for nothing, left out: a third of its time."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["quick_import"]

_ABSENT = "tvm.runtime.disco"
"""TVM imports it, finds that the library with its types is not loaded, and goes on without."""

_CHECKER = "tvm.s_tir.schedule._type_checker"
"""The module of a decorator by which each step of a schedule checks the types of its arguments: a sixth of the time of
scheduling. C++ checks those that it reads."""

_OPERATORS = "tvm.ir._ffi_api"
"""The module of functions behind `tvm.ir.Op`."""

_PRINTED = "TScriptPrinterName"
"""The attribute that is set twice, which C++ refuses."""


@contextmanager
def quick_import() -> Iterator[None]:
    """Import TVM in less time meanwhile; what is imported is the same.

    TVM's modules find out by a hundred exceptions of C++ what is not there. The first gathers a backtrace, for which
    the symbols of all libraries are read: 0.15 s. And each of fifty modules of functions asks for the names of all that
    are registered, some 2,300.
    """
    sys.modules.setdefault(_ABSENT, None)  # type: ignore[arg-type]  # the mark of a module that is not there
    if not os.environ.get("RELAXC_STRICT"):  # of the tests: see schedules/strict.py
        sys.modules.setdefault(_CHECKER, _unchecked())
    package: Any
    registry: Any
    package, registry = importlib.import_module("tvm_ffi"), importlib.import_module("tvm_ffi.registry")
    listed, init = registry.list_global_func_names, package.init_ffi_api
    replaced: dict[str, Any] = {}

    def init_quickly(namespace: str, target_module_name: str | None = None) -> None:
        init(namespace, target_module_name)
        if target_module_name == _OPERATORS:
            functions = sys.modules[_OPERATORS]
            operators = _Operators(functions)
            quickly = {"GetOp": operators.get, "RegisterOp": operators.add, "RegisterOpAttr": operators.set}
            for name, quick in quickly.items():
                replaced[name] = getattr(functions, name)
                setattr(functions, name, quick)

    registry.list_global_func_names = _Names(registry)
    package.init_ffi_api = init_quickly
    try:
        yield
    finally:
        registry.list_global_func_names, package.init_ffi_api = listed, init
        for name, function in replaced.items():
            setattr(sys.modules[_OPERATORS], name, function)


def _unchecked() -> ModuleType:
    module = ModuleType(_CHECKER)
    module.type_checked = lambda function: function  # type: ignore[attr-defined]
    return module


class _Names:
    """Lists the names of registered functions, and anew only where there are others than before."""

    def __init__(self, registry: Any) -> None:
        self._functor = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")
        self._known: list[str] = []

    def __call__(self) -> list[str]:
        name = self._functor()
        count = name(-1)
        if count != len(self._known):  # none is taken away while modules are imported
            self._known = [name(index) for index in range(count)]
        return self._known


class _Operators:
    """What C++ knows of operators, asked before it would raise."""

    def __init__(self, functions: Any) -> None:
        self._get, self._attribute = functions.GetOp, functions.OpGetAttr
        self._add, self._set = functions.RegisterOp, functions.RegisterOpAttr
        self._known = set(map(str, functions.ListOpNames()))

    def get(self, name: str) -> Any:
        """Return the operator. Raise AttributeError, as C++ does, where there is none."""
        if name not in self._known:
            raise AttributeError(f"there is no operator {name}")
        return self._get(name)

    def add(self, name: str, *more: Any) -> None:
        """Make an operator."""
        self._add(name, *more)
        self._known.add(name)

    def set(self, name: str, attribute: str, value: Any, level: int) -> None:
        """Set an attribute of an operator, which is made where there is none; what has a printed name keeps it."""
        known = name in self._known and attribute == _PRINTED
        if known and self._attribute(self._get(name), attribute) == value:
            return
        self._set(name, attribute, value, level)
        self._known.add(name)

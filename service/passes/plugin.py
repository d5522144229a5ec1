"""Passes, patterns and operators from a user's own Python file; docs/adding_a_pass.md shows all three."""

from __future__ import annotations

import importlib.util
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.relax.dpl import DFPattern, rewrite_call

from service.errors import PluginError, RelaxcError
from service.passes.phase import PHASES

__all__ = ["ApplyPatterns", "Operators", "Plugin", "load_plugin"]

OPAQUE = 8
"""kOpaque of TVM's fusion: never part of a group."""

KNOWN = ("PASSES", "PATTERNS", "PRIM_FUNCS")

PrimFuncSource = Callable[..., Any]
"""A PrimFunc (which is callable too), or a function of the argument types that gives one."""

Replacement = Callable[[relax.Expr, Mapping[DFPattern, relax.Expr], "Operators"], relax.Expr | None]
"""`(matched, parts, ops) → expr`, or None to leave the match as it is."""


@dataclass(frozen=True)
class Plugin:
    """What one file defines.

    `passes`: phase name → TVM passes that run at its end. `patterns`: (pattern, replacement) pairs, applied in the
    phase `plugins`. `prim_funcs`: operators that the replacements call by name.
    """

    path: Path
    passes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    patterns: Sequence[tuple[DFPattern, Replacement]] = ()
    prim_funcs: Mapping[str, PrimFuncSource] = field(default_factory=dict)

    def error(self, message: str, cause: BaseException | None = None) -> PluginError:
        """Return the error that names this file, and the line of it that raised `cause`."""
        line = _line_in(self.path, cause)
        where = f"{self.path}:{line}" if line else str(self.path)
        return PluginError(f"{where}: {message}", path=str(self.path), line=line)


def load_plugin(path: Path | str, *, phases: Sequence[str] = PHASES) -> Plugin:
    """Load the plugin in a Python file, which is executed with the rights of this process.

    `phases` are the names that PASSES may use (those of the pipeline by default). Raise PluginError that
    names the file and the line.
    """
    found = Plugin(Path(path))
    module = _execute(found)
    names = [name for name in KNOWN if hasattr(module, name)]
    if not names:
        raise found.error(f"defines none of {', '.join(KNOWN)}")
    plugin = Plugin(
        found.path,
        getattr(module, "PASSES", {}),
        getattr(module, "PATTERNS", ()),
        getattr(module, "PRIM_FUNCS", {}),
    )
    _validate(plugin, phases)
    return plugin


def _execute(plugin: Plugin) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"relaxc_plugin_{plugin.path.stem}", plugin.path)
    if spec is None or spec.loader is None or not plugin.path.is_file():
        raise plugin.error("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything, and it is the user's to see
        raise plugin.error(f"{type(error).__name__}: {error}", error) from error
    return module


def _validate(plugin: Plugin, phases: Sequence[str]) -> None:
    if not isinstance(plugin.passes, Mapping) or not isinstance(plugin.prim_funcs, Mapping):
        raise plugin.error("PASSES and PRIM_FUNCS must be dicts")
    for phase, passes in plugin.passes.items():
        if phase not in phases:
            raise plugin.error(f"PASSES names the phase {phase!r}; there are {', '.join(phases)}")
        if not isinstance(passes, Sequence) or not all(isinstance(each, tvm.transform.Pass) for each in passes):
            raise plugin.error(f"PASSES[{phase!r}] must be a list of tvm passes")
    if not isinstance(plugin.patterns, Sequence):
        raise plugin.error("PATTERNS must be a list")
    for index, pair in enumerate(plugin.patterns):
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], DFPattern) and callable(pair[1])):
            raise plugin.error(f"PATTERNS[{index}] must be a pair of a relax.dpl pattern and a function")
    for name, source in plugin.prim_funcs.items():
        if not isinstance(name, str) or not name.isidentifier() or not callable(source):
            raise plugin.error(f"PRIM_FUNCS[{name!r}] must be a PrimFunc, or a function that gives one, under a name")


def _line_in(path: Path, error: BaseException | None) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return lines[-1] if lines else None


class Operators:
    """The plugin's own operators, for its replacements: `ops("name", [x, y])` is a call of PRIM_FUNCS["name"]."""

    def __init__(self, plugin: Plugin, builder: relax.BlockBuilder) -> None:
        self._plugin = plugin
        self._builder = builder
        self.matched: Any = None

    def __call__(self, name: str, args: Sequence[relax.Expr], out: Any = None) -> relax.Expr:
        """The result of the operator on tensors; `out` is its type, that of the matched expression by default."""
        args = [self._builder.normalize(arg) for arg in args]
        out = self.matched.ty if out is None else out
        source: Any = self._plugin.prim_funcs.get(name)
        if source is None:
            raise KeyError(f"PRIM_FUNCS has no {name!r}")
        function = source if isinstance(source, tirx.PrimFunc) else source(*(arg.ty for arg in args))
        if not isinstance(function, tirx.PrimFunc):
            raise TypeError(f"PRIM_FUNCS[{name!r}] gave a {type(function).__name__}, not a PrimFunc")
        if "global_symbol" in (function.attrs or {}):
            function = function.without_attr("global_symbol")
        gvar = self._builder.add_func(_specialized(function, [*(arg.ty for arg in args), out]), name)
        return relax.call_tir(gvar, args, out_ty=out)


def _specialized(function: tirx.PrimFunc, types: Sequence[Any]) -> tirx.PrimFunc:
    """The PrimFunc for these sizes, or one that is not fused: FuseTIR takes equal buffers only."""
    if len(types) != len(function.params):
        raise TypeError(f"the PrimFunc has {len(function.params)} parameters, called with {len(types)} tensors")
    if all(isinstance(ty.shape, relax.ShapeExpr) and all(hasattr(dim, "value") for dim in ty.shape) for ty in types):
        zero = tirx.IntImm("int64", 0)
        buffers = [tirx.decl_buffer(list(ty.shape), str(ty.dtype), elem_offset=zero, layout=None) for ty in types]
        return function.specialize(dict(zip(function.params, buffers, strict=True)))
    same = all(
        tvm_ffi.structural_equal(list(parameter.ty.shape), list(ty.shape))
        for parameter, ty in zip(function.params, types, strict=True)
    )
    return function if same else function.with_attr("op_pattern", OPAQUE)


@tvm.transform.module_pass(opt_level=0, name="ApplyPatterns")
class ApplyPatterns:
    """Each of a plugin's patterns, in order, over `main`: what matches is replaced by what its function gives."""

    def __init__(self, plugin: Plugin, raised: list[RelaxcError]) -> None:
        self.plugin = plugin
        self.raised = raised

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Rewrite the module. Raise PluginError if a replacement raises, and keep it in `raised`."""
        for pattern, replace in self.plugin.patterns:
            module = self._apply(module, pattern, replace)
        return module

    def _apply(self, module: IRModule, pattern: DFPattern, replace: Replacement) -> IRModule:
        builder = relax.BlockBuilder(module)
        operators = Operators(self.plugin, builder)
        raised: list[Exception] = []

        def rewriter(matched: relax.Expr, parts: Mapping[DFPattern, relax.Expr]) -> relax.Expr:
            operators.matched = matched
            try:
                result = replace(matched, parts, operators)
            except Exception as error:  # noqa: BLE001  # the user's function; raised again with its place below
                raised.append(error)
                result = None
            return matched if result is None else result

        main = rewrite_call(pattern, rewriter, module["main"])
        if raised:
            self.raised.append(self.plugin.error(f"{type(raised[0]).__name__}: {raised[0]}", raised[0]))
            raise self.raised[-1] from raised[0]
        rewritten = builder.get()
        rewritten.update_func(rewritten.get_global_var("main"), relax.analysis.remove_all_unused(main))
        return rewritten

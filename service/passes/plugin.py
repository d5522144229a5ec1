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
from tvm.relax.dpl import DFPattern, WildcardPattern, rewrite_call

from relaxc.service.errors import PluginError, RelaxcError
from relaxc.service.passes.phase import PHASES
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.passes.triton_kernel import TritonKernel, reason_against, triton_call, types_of

__all__ = ["ApplyPatterns", "Operators", "Plugin", "load_plugin"]

OPAQUE = 8
"""kOpaque of TVM's fusion: never part of a group."""

KNOWN = ("PASSES", "PATTERNS", "PRIM_FUNCS", "TRITON")

PrimFuncSource = Callable[..., Any]
"""A PrimFunc (which is callable too), or a function of the argument types that gives one, or None: leave the match."""

Replacement = Callable[[relax.Expr, Mapping[DFPattern, relax.Expr], "Operators"], relax.Expr | None]
"""`(matched, parts, ops) → expr`, or None to leave the match as it is."""


@dataclass(frozen=True)
class Plugin:
    """What one file defines.

    `passes`: phase name → TVM passes that run at its end. `patterns`: (pattern, replacement) pairs, applied in the
    phase `plugins`. `prim_funcs`: operators that the replacements call by name. `triton`: those that a Triton kernel
    computes where it can; where not, the one of the same name in `prim_funcs`.
    """

    path: Path
    passes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    patterns: Sequence[tuple[DFPattern, Replacement]] = ()
    prim_funcs: Mapping[str, PrimFuncSource] = field(default_factory=dict)
    triton: Mapping[str, TritonKernel] = field(default_factory=dict)

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
        getattr(module, "TRITON", {}),
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
    if not all(isinstance(each, Mapping) for each in (plugin.passes, plugin.prim_funcs, plugin.triton)):
        raise plugin.error("PASSES, PRIM_FUNCS and TRITON must be dicts")
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
    for name, kernel in plugin.triton.items():
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(kernel, TritonKernel):
            raise plugin.error(f"TRITON[{name!r}] must be a TritonKernel under a name")
        try:
            kernel.file_of(plugin.path)
        except ValueError as error:
            raise plugin.error(f"TRITON[{name!r}]: {error}") from error


def _line_in(path: Path, error: BaseException | None) -> int | None:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return lines[-1] if lines else None


class _LeaveIt(Exception):
    """An operator of the plugin has nothing for these arguments: the match stays as it is."""


class Operators:
    """The plugin's own operators, for its replacements: `ops("name", [x, y])` calls TRITON["name"] where that can be,
    else PRIM_FUNCS["name"]; without either the match is left as it is.
    """

    def __init__(self, plugin: Plugin, builder: relax.BlockBuilder, report: OptimizeReport) -> None:
        self._plugin = plugin
        self._builder = builder
        self._report = report
        self.matched: Any = None

    def __call__(self, name: str, args: Sequence[relax.Expr], out: Any = None) -> relax.Expr:
        """The result of the operator on tensors; `out` is its type, that of the matched expression by default."""
        args = [self._builder.normalize(arg) for arg in args]
        out = self.matched.ty if out is None else out
        if name not in self._plugin.prim_funcs and name not in self._plugin.triton:
            raise KeyError(f"neither PRIM_FUNCS nor TRITON has {name!r}")
        types = [*(arg.ty for arg in args), out]
        function = self._triton(name, types) or self._prim_func(name, types)
        return relax.call_tir(self._builder.add_func(function, name), args, out_ty=out)

    def _triton(self, name: str, types: Sequence[Any]) -> tirx.PrimFunc | None:
        kernel = self._plugin.triton.get(name)
        if kernel is None:
            return None
        target = tvm.target.Target.current(allow_none=True)
        if target is None or str(target.kind.name) != "cuda":
            return None
        if reason := reason_against(str(target.attrs["arch"]), types):
            self._report.triton_declined[f"triton: {self._plugin.path.stem}.{name}"] = reason
            return None
        call = triton_call(kernel, self._plugin.path, types)
        return call.prim_func(types_of(types)).with_attr("op_pattern", OPAQUE)

    def _prim_func(self, name: str, types: Sequence[Any]) -> tirx.PrimFunc:
        source: Any = self._plugin.prim_funcs.get(name)
        function = source if source is None or isinstance(source, tirx.PrimFunc) else source(*types[:-1])
        if function is None:
            raise _LeaveIt
        if not isinstance(function, tirx.PrimFunc):
            raise TypeError(f"PRIM_FUNCS[{name!r}] gave a {type(function).__name__}, not a PrimFunc")
        if "global_symbol" in (function.attrs or {}):
            function = function.without_attr("global_symbol")
        return _specialized(function, types)


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

    def __init__(self, plugin: Plugin, raised: list[RelaxcError], report: OptimizeReport) -> None:
        self.plugin = plugin
        self.raised = raised
        self.report = report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Rewrite the module. Raise PluginError if a replacement raises, and keep it in `raised`."""
        for pattern, replace in self.plugin.patterns:
            module = self._apply(module, pattern, replace)
        return module

    def _apply(self, module: IRModule, pattern: DFPattern, replace: Replacement) -> IRModule:
        builder = relax.BlockBuilder(module)
        operators = Operators(self.plugin, builder, self.report)
        raised: list[Exception] = []
        bound = {binding.value: binding.var for block in module["main"].body.blocks for binding in block.bindings}

        def rewriter(matched: relax.Expr, parts: Mapping[DFPattern, relax.Expr]) -> relax.Expr:
            operators.matched = matched
            # A wildcard in an alternative may match a call where its variable was meant, which would be computed twice.
            leaves = {p: bound.get(e, e) if isinstance(p, WildcardPattern) else e for p, e in parts.items()}
            try:
                result = replace(matched, leaves, operators)
            except _LeaveIt:
                result = None
            except Exception as error:  # noqa: BLE001  # the user's function; raised again with its place below
                raised.append(error)
                result = None
            return matched if result is None else result

        main = rewrite_call(pattern, rewriter, module["main"])
        if raised:
            self.raised.append(self._named(raised[0]))
            raise self.raised[-1]
        rewritten = builder.get()
        rewritten.update_func(rewritten.get_global_var("main"), relax.analysis.remove_all_unused(main))
        return rewritten

    def _named(self, error: Exception) -> RelaxcError:
        """Return an error of ours as it is, and any other as one of the plugin."""
        if isinstance(error, RelaxcError):
            return error
        named = self.plugin.error(f"{type(error).__name__}: {error}", error)
        named.__cause__ = error
        return named

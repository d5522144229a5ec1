"""Symbolic sizes of an exported program: sympy symbols (`s43`) ↔ readable names (`s0`) ↔ TVM variables.

An archive does not keep the names of `torch.export.Dim`; symbols are named `s0`, `s1`, … in the order in which the
inputs use them, until a user's `--shape ids=batch,seq` names them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from relaxc.service.errors import InvalidShape, UnsupportedModel
from relaxc.service.frontend.onnx.dims import dim_text, is_word, number_of, simplify, told
from relaxc.service.frontend.onnx.scope import FAR
from relaxc.service.signature import MAX_DIM_CHARS, Condition, Dim, DimBounds

__all__ = ["Symbols", "parse_expression"]

# torch writes the largest index for 'no bound'; anything near it means that as well.
_UNBOUNDED = 1 << 62


def parse_expression(text: str) -> Any:
    """Return the sympy expression in a SymExpr that `pt2_check` let through."""
    import sympy
    from torch.utils._sympy import functions

    known = {name: getattr(functions, name) for name in functions.__all__ if name[0].isupper()}
    return sympy.sympify(text, locals=known)


class Symbols:
    """The symbols of one program, what is known of each, and what a user's shapes put in their place."""

    def __init__(self, ranges: dict[str, tuple[int | None, int | None]]) -> None:
        self._ranges = ranges
        self._names: dict[Any, str] = {}
        self._values: dict[Any, Any] = {}
        self._variables: dict[str, Any] = {}
        self._anchors: dict[Any, Any] = {}
        self._wholes: dict[Any, Any] = {}
        self.conditions: dict[str, Condition] = {}

    @cached_property
    def analyzer(self) -> Any:
        """TVM's, which knows the bounds of the variables that were made."""
        from tvm.sym import Analyzer

        return Analyzer()

    def require(self, left: Any, right: Any, why: str) -> bool:
        """Have every call satisfy `left >= right`, numbers or TVM expressions, for the first reason that was given.

        Return False where no call does. Raise UnsupportedModel for what a call could not be held to.
        """
        apart = self._simple(left - right)
        if isinstance(apart, int):
            return apart >= 0
        if self.analyzer.can_prove(apart < 0):
            return False
        if not self.analyzer.can_prove(apart >= 0):
            text = f"{self._text(left, why)} >= {self._text(right, why)}"
            self.conditions.setdefault(text, Condition(text, why))
        return True

    def _text(self, size: Any, why: str) -> Dim:
        try:
            return dim_text(self._simple(size))
        except NotImplementedError as error:
            raise UnsupportedModel(f"{why}: {error}") from error

    def told(self, size: Any) -> Dim:
        """Return a number or a TVM expression in the signature's names."""
        return told(self._simple(size))

    def _simple(self, size: Any) -> Any:
        import tvm_ffi
        from tvm import tirx

        if isinstance(size, int):
            return size
        whole = (tirx.Var, lambda name: self._wholes.get(name, name))
        return simplify(tvm_ffi.structural_map(size, [whole, (tirx.FloorDiv, _upright)], order="post"), self)

    def meet(self, expression: Any) -> None:
        """Name the symbols of an input's size, in the order of the calls."""
        for symbol in sorted(expression.free_symbols, key=str):
            self._names.setdefault(symbol, f"s{len(self._names)}")

    def dim(self, expression: Any) -> Dim:
        """Return a size as a number, a name, or an integer expression over names. Raise UnsupportedModel for others.

        A size that only the data decides has torch's name for it (`u0`) and no bounds.
        """
        expression = self.resolve(expression)
        if expression.is_Integer:
            return int(expression)
        text = _text(expression, lambda symbol: self._names.get(symbol, str(symbol)))
        if len(text) > MAX_DIM_CHARS:
            raise UnsupportedModel(f"a size of an input or output has {len(text)} characters: {text[:100]}")
        return text

    def tir(self, expression: Any) -> Any:
        """Return a size as a TVM expression. Raise UnsupportedModel for what has no TVM counterpart."""
        resolved = self.resolve(expression)
        return self._anchors[resolved] if resolved in self._anchors else _tir(resolved, self._variable)

    def anchor(self, expressions: list[Any]) -> None:
        """Make every symbol computable from the sizes of the inputs.

        TVM reads a symbol where it stands alone. One that is only seen as `2*s0` is computed from a variable that
        stands for the whole: s0 = (s0_whole - 0) // 2.
        """
        from tvm import tirx

        resolved = [self.resolve(expression) for expression in expressions]
        alone = {expression for expression in resolved if expression.is_Symbol}
        for expression in resolved:
            unknown = expression.free_symbols - alone
            if not unknown:
                continue
            symbol = min(unknown, key=str)
            slope, rest = expression.as_independent(symbol, as_Add=True)[::-1]
            factor = slope / symbol
            if not factor.is_Integer or not rest.is_Integer or factor < 1:
                raise UnsupportedModel(f"an input has the size {expression}, from which {symbol} cannot be told")
            variable = self._variable(symbol)
            whole = tirx.Var(f"{variable.name}_whole", "int64")
            self._wholes[whole] = variable * int(factor) + int(rest)
            self._anchors[expression] = whole
            self._variables[variable.name] = tirx.floordiv(whole - int(rest), tirx.IntImm("int64", int(factor)))
            alone.add(symbol)

    def bounds(self) -> tuple[tuple[str, DimBounds], ...]:
        """Return the bounds of each symbol that a user's shapes left symbolic, by its name."""
        found: dict[str, DimBounds] = {}
        for symbol, name in self._names.items():
            if symbol not in self._values:
                found[name] = self._bounds_of(symbol)
        return tuple(found.items())

    def resolve(self, expression: Any) -> Any:
        """Return the expression with the user's sizes in it."""
        import sympy

        expression = sympy.sympify(expression)
        return expression.xreplace(self._values) if self._values else expression

    def apply(self, name: str, model: list[Any], wanted: tuple[Dim, ...]) -> None:
        """Take a user's shape for the input `name`: sizes bind its symbols, names rename them. Raise InvalidShape."""
        if len(model) != len(wanted):
            raise InvalidShape(f"input {name!r} has {len(model)} dims, --shape gives {len(wanted)}", name=name)
        for index, (expression, dim) in enumerate(zip(model, wanted, strict=True)):
            where = f"dim {index} of input {name!r}"
            if isinstance(dim, str):
                self._rename(where, expression, dim)
            else:
                self._bind(where, expression, dim)

    def _rename(self, where: str, expression: Any, wanted: str) -> None:
        if not wanted.isidentifier() or not wanted.isascii() or is_word(wanted):
            if self.dim(expression) != wanted:
                raise InvalidShape(f"{where} is {self.dim(expression)}; {wanted!r} is neither a size nor a name")
            return
        resolved = self.resolve(expression)
        if not resolved.is_Symbol:
            raise InvalidShape(f"{where} is {self.dim(expression)}, and cannot be the symbolic {wanted!r}")
        others = [symbol for symbol, name in self._names.items() if name == wanted and symbol != resolved]
        if not others:
            self._names[resolved] = wanted
        elif others[0] not in self._values:
            self._values[resolved] = others[0]  # two dims under one name are one dim from here on

    def _bind(self, where: str, expression: Any, size: int) -> None:
        import sympy

        resolved = self.resolve(expression)
        if resolved.is_Integer:
            if int(resolved) != size:
                raise InvalidShape(f"{where} is {resolved} in the exported program, and cannot be {size}")
            return
        symbols = sorted(resolved.free_symbols, key=str)
        roots = sympy.solve(resolved - size, symbols[0]) if len(symbols) == 1 and resolved.is_polynomial() else []
        found = [root for root in roots if root.is_Integer and root >= 0]
        if not found:
            raise InvalidShape(f"{where} is {self.dim(expression)}, which is never {size}")
        bounds = self._bounds_of(symbols[0])
        if int(found[0]) not in bounds:
            name = self._name(symbols[0])
            raise InvalidShape(f"{where}: {name} = {found[0]} is outside its bounds {bounds}", name=name)
        self._values[symbols[0]] = found[0]
        self._values = {symbol: value.xreplace(self._values) for symbol, value in self._values.items()}

    def _bounds_of(self, symbol: Any) -> DimBounds:
        merged = [symbol, *(other for other, value in self._values.items() if value == symbol)]
        ranges = [self._ranges.get(str(one), (None, None)) for one in merged]
        low = max((minimum for minimum, _ in ranges if minimum is not None), default=0)
        high = min((maximum for _, maximum in ranges if maximum is not None and maximum < _UNBOUNDED), default=None)
        return DimBounds(max(low, 0), high)

    def _name(self, symbol: Any) -> str:
        if symbol not in self._names:
            raise UnsupportedModel(f"a size depends on the data ({symbol}), which no compiled program can plan for")
        return self._names[symbol]

    def _variable(self, symbol: Any) -> Any:
        from tvm import ir, tirx

        name = self._name(symbol)
        if name not in self._variables:
            variable = tirx.Var(name, "int64")
            self._variables[name] = variable
            bounds = self._bounds_of(symbol)
            most = FAR if bounds.maximum is None else bounds.maximum
            self.analyzer.bind(variable, ir.Range.from_min_extent(bounds.minimum, most - bounds.minimum + 1))
        return self._variables[name]


def _upright(quotient: Any) -> Any:
    """The quotient with a positive divisor: TVM simplifies nothing that is divided by -1."""
    from tvm import tirx

    return tirx.floordiv(0 - quotient.a, 0 - quotient.b) if (number_of(quotient.b) or 0) < 0 else quotient


def _text(expression: Any, name: Callable[[Any], str]) -> str:
    """The expression in the syntax of a signature: names, numbers, + - * // %."""
    kind = type(expression).__name__
    if expression.is_Symbol:
        return name(expression)
    if expression.is_Integer:
        return str(int(expression))
    parts = [_text(arg, name) if not arg.is_Rational or arg.is_Integer else "" for arg in expression.args]
    if kind == "Add":
        constants_last = sorted(zip(expression.args, parts, strict=True), key=lambda pair: pair[0].is_Integer)
        return " + ".join(part for _, part in constants_last).replace("+ -", "- ")
    if kind == "Mul":
        return _product(expression, name)
    if kind == "Pow" and expression.exp.is_Integer and 0 < expression.exp <= 8:
        return "*".join([_grouped(expression.base, parts[0])] * int(expression.exp))
    if kind in ("FloorDiv", "CleanDiv"):
        return f"{_grouped(expression.args[0], parts[0])}//{_grouped(expression.args[1], parts[1])}"
    if kind in ("Mod", "PythonMod"):
        return f"{_grouped(expression.args[0], parts[0])} % {_grouped(expression.args[1], parts[1])}"
    raise UnsupportedModel(f"a size of an input or output is the expression {expression}")


def _product(expression: Any, name: Callable[[Any], str]) -> str:
    number, rest = expression.as_coeff_Mul()
    factors = [_grouped(factor, _text(factor, name)) for factor in rest.as_ordered_factors()]
    if number.p != 1:
        factors.insert(0, str(number.p))
    text = "*".join(factors)
    return text if number.q == 1 else f"({text})//{number.q}"


def _grouped(expression: Any, text: str) -> str:
    return text if expression.is_Symbol or expression.is_Integer else f"({text})"


def _tir(expression: Any, variable: Callable[[Any], Any]) -> Any:
    from tvm import tirx

    kind = type(expression).__name__
    if expression.is_Symbol:
        return variable(expression)
    if expression.is_Integer:
        return tirx.IntImm("int64", int(expression))
    if kind == "Mul":
        number, rest = expression.as_coeff_Mul()
        result = tirx.IntImm("int64", number.p)
        for factor in rest.as_ordered_factors():
            result = result * _tir(factor, variable)
        return result if number.q == 1 else tirx.floordiv(result, tirx.IntImm("int64", number.q))
    if kind == "Pow" and expression.exp.is_Integer and 0 < expression.exp <= 8:
        result = _tir(expression.base, variable)
        for _ in range(int(expression.exp) - 1):
            result = result * _tir(expression.base, variable)
        return result
    if kind not in _TIR:
        raise UnsupportedModel(f"a size is computed with {kind}: {expression}")
    terms = [_tir(arg, variable) for arg in expression.args]
    result = terms[0]
    for term in terms[1:]:
        result = getattr(tirx, _TIR[kind])(result, term) if kind != "Add" else result + term
    return result


_TIR = {
    "Add": "",
    "FloorDiv": "floordiv",
    "CleanDiv": "floordiv",
    "CeilDiv": "ceildiv",
    "Mod": "floormod",
    "PythonMod": "floormod",
    "Max": "max",
    "Min": "min",
}

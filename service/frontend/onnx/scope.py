"""The symbolic sizes of one model while it is imported: their variables, and what every call's sizes must satisfy."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relaxc.service.frontend.onnx.dims import (
    OPERATORS,
    dim_text,
    is_long,
    number_of,
    same,
    shared_names,
    simplify,
    unique,
    variables,
)
from relaxc.service.signature import Condition, Dim

if TYPE_CHECKING:
    from relaxc.service.frontend.onnx.branches import Branch

__all__ = ["FAR", "RESTARTS", "Barred", "Choice", "Equal", "Fit", "Never", "Scope"]


FAR = 1 << 48
"""Memory for so many of anything is out of reach; the bound lets the analyzer rule out overflow."""


Fits = Mapping[tuple[str, bool], Mapping[str, list[str]]]
"""A branch of an If, the one where its condition holds or the other, → size → what must hold of it."""

_RELATIONS = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


class Equal(Exception):
    """The graph needs the size `name` to be `dim`: the import starts again with inputs that say so."""

    def __init__(self, name: str, dim: Dim) -> None:
        super().__init__(f"{name} = {dim}")
        self.name, self.dim = name, dim


class Choice(Exception):
    """The sizes of a call decide what holds at `name`, as which branch an If takes: the import takes one way."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Fit(Exception):
    """The branch `key` is for sizes `name` of which `text` holds, a condition with 0 on its right."""

    def __init__(self, key: tuple[str, bool], name: str, text: str) -> None:
        super().__init__(f"{key}: {text}")
        self.key, self.name, self.text = key, name, text


class Barred(Exception):
    """The branch `key` fits no sizes of the calls, and `why`."""

    def __init__(self, key: tuple[str, bool], why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key, self.why = key, why


RESTARTS = (Equal, Choice, Fit, Barred)
"""What an import begins anew for."""


class Never(ValueError):
    """Sizes that no call can have."""


class Scope:
    """The symbolic dims of one model: a `tirx.Var` for each name, and an analyzer that knows they are at least 1."""

    def __init__(
        self,
        choices: Mapping[str, bool] | None = None,
        fits: Fits | None = None,
        barred: Mapping[tuple[str, bool], str] | None = None,
    ) -> None:
        from tvm.sym import Analyzer

        self.analyzer: Any = Analyzer()
        self.choices = choices or {}
        """If, or axis of a Squeeze → whether its condition holds, where sizes decide it and the import took one way."""
        self.fits, self.barred = fits or {}, barred or {}
        self.branch: Branch | None = None
        """The branch that is converted, where it is for sizes of its own."""
        self.inputs: dict[Any, str] = {}
        self.variables: dict[str, Any] = {}
        self.data_dependent: set[str] = set()
        self.lower: dict[str, int] = {}
        self.upper: dict[str, int] = {}
        self.conditions: dict[str, Condition] = {}
        """By their text, each with the operator that needed it first."""
        self.ranges: dict[Any, tuple[Any, Any]] = {}
        """Variables of the program that are ranges of sizes, with their least and greatest element."""

        self.places: dict[Any, Any] = {}
        """What NonZero found in a tensor, as the program has them."""
        self.read: dict[Any, list[Any]] = {}
        """The numbers of a tensor that were read as the program runs, as sizes."""

    def chosen(self, name: str) -> bool:
        """Return whether the import takes what sizes decide at `name` to hold. Raise Choice where it has taken none."""
        if name not in self.choices:
            raise Choice(name)
        return self.choices[name]

    def variable(self, name: str) -> Any:
        """Return the variable of that name, made at first use."""
        from tvm import tirx

        if name not in self.variables:
            variable = tirx.Var(name, "int64")
            self._bound(variable)
            self.variables[name] = variable
        return self.variables[name]

    def fresh(self, hint: str) -> Any:
        """Return a variable for a size that only the data decides (NonZero), which may be zero."""
        from tvm import tirx

        name = unique(hint, self.variables)
        self.variables[name] = tirx.Var(name, "int64")
        self.data_dependent.add(name)
        self.lower[name] = 0
        self._bound(self.variables[name])
        return self.variables[name]

    def unify(self, left: Any, right: Any) -> None:
        """Raise Equal when one side is a bare name of an input that the other one does not use.

        TVM would drop the run-time check of such an equality and with it the shape (CanonicalizeBindings maps the
        one variable to the other), so it has to be in the signature.
        """
        for one, other in ((left, right), (right, left)) if self.branch is None else ():
            name = getattr(one, "name", None) if type(one).__name__ == "Var" else None
            if name is None or shared_names(one, other) or self.depends_on_data(one, other):
                continue
            raise Equal(name, dim_text(other))

    def depends_on_data(self, *dims: Any) -> bool:
        """Return whether a dim uses a size that only the data decides."""
        return any(name in self.data_dependent for dim in dims for name in variables(dim))

    def require(self, left: Any, relation: str, right: Any, why: str) -> Any:
        """Have every call satisfy `left == right`, `!=` or `>=`: by a name that becomes a size, or by a condition.

        Return None, or what only the program can check, as the data decides it: an expression that must be 0.

        Raise Never where no sizes do, Equal where a name is decided, and NotImplementedError for what has no text.
        """
        from tvm import tirx

        if is_long(left) or is_long(right):
            raise NotImplementedError("a size of so many terms that to compare it takes minutes")
        if relation == "==" and same(left, right, self):
            return None
        left, right = _int64(left), _int64(right)
        if relation == ">=" and self.analyzer.can_prove(left >= right):
            return None
        apart = simplify(left - right, self)
        if isinstance(apart, int):
            if _RELATIONS[relation](apart, 0):
                return None
            raise Never(f"{why}: {dim_text(left)} {relation} {dim_text(right)} does not hold")
        apart = self._without_factors(apart) if relation != ">=" else apart
        zero = tirx.const(0, "int64")
        holds = {"==": tirx.EQ, "!=": tirx.NE, ">=": tirx.GE}[relation](apart, zero)
        if self.analyzer.can_prove(holds):
            return None
        if self.analyzer.can_prove(tirx.Not(holds)):
            raise Never(f"{why}: {dim_text(left)} {relation} {dim_text(right)} holds of no sizes")
        if self.branch is not None and self.branch.holds(variables(apart), f"{dim_text(apart)} {relation} 0", self):
            return None
        if self.depends_on_data(apart):
            return {"==": apart, "!=": tirx.EQ(apart, zero).astype("int64"), ">=": tirx.min(apart, zero)}[relation]
        if relation == "==":
            self._decide(apart, why)
        self._note(apart, relation, why)
        self.analyzer.constraint_scope(holds).__enter__()  # for what is asked later; it is never taken back
        return None

    def _without_factors(self, apart: Any) -> Any:
        """What is 0 where a product is: its factors but those that never are, as sizes."""
        while type(apart).__name__ == "Mul":
            kept = [each for each in (apart.a, apart.b) if not self.analyzer.can_prove(each >= 1)]
            if len(kept) != 1:
                return apart
            apart = kept[0]
        return apart

    def _decide(self, apart: Any, why: str) -> None:
        """Raise Equal for a name that `apart == 0` gives, being `±name + rest`, or a multiple of that."""
        from tvm import tirx
        from tvm.sym import detect_linear_equation

        for name in sorted(tirx.analysis.undefined_vars(apart), key=lambda variable: variable.name):
            parts = detect_linear_equation(apart, [name])
            factor = number_of(parts[0]) if len(parts) == 2 else None
            if not factor:
                continue
            number = number_of(simplify(parts[1], self))
            if number is not None:
                size, rest = divmod(-number, factor)
                if rest or size < 1:
                    raise Never(f"{why}: {dim_text(apart)} is 0 for no {name.name}")
                raise Equal(name.name, size)
            if abs(factor) == 1 and name.name not in variables(parts[1]):
                rest = simplify(parts[1] * -factor, self)
                if self.analyzer.can_prove(rest >= 1):
                    raise Equal(name.name, dim_text(rest))

    def _note(self, apart: Any, relation: str, why: str) -> None:
        """Write the condition as one is read: a bound of a name, of which the strictest stays, or without a factor."""
        from tvm import tirx

        names = tirx.analysis.undefined_vars(apart)
        factor, rest = self._linear(apart, names[0]) if len(names) == 1 else (None, None)
        if relation != ">=" or not factor or rest is None:
            if type(apart).__name__ == "Mul" and relation != ">=" and number_of(apart.b):
                apart = apart.a
            text = f"{dim_text(apart)} {relation} 0"
            self.conditions.setdefault(text, Condition(text, why))
            return
        name = names[0].name
        if factor > 0:
            self.lower[name] = -(rest // factor)  # of factor * name >= -rest, rounded up
            self.conditions[f"{name} >="] = Condition(f"{name} >= {self.lower[name]}", why)
        else:
            self.upper[name] = rest // -factor
            self.conditions[f">= {name}"] = Condition(f"{self.upper[name]} >= {name}", why)
        self._bound(names[0])

    def bound_by(self, name: Any, low: int, high: int) -> None:
        """Let a size of the data's be one of these."""
        self.lower[name.name], self.upper[name.name] = low, high
        self._bound(name)

    def _bound(self, name: Any) -> None:
        """Let the analyzer know the bounds of a name."""
        from tvm import ir

        low, high = self.lower.get(name.name, 1), self.upper.get(name.name, FAR)
        self.analyzer.bind(name, ir.Range.from_min_extent(low, high - low + 1), allow_override=True)

    def limit(self, dim: Any, most: int) -> bool:
        """Bound the one name in `factor * name + rest` so that the dim is at most `most`; False for other dims."""
        from tvm import tirx

        names = tirx.analysis.undefined_vars(dim)
        if len(names) != 1 or names[0].name in self.data_dependent or self.branch is not None:
            return False
        name = names[0]
        factor, rest = self._linear(dim, name)
        if factor is None or rest is None or factor < 1 or (most - rest) // factor < 1:
            return False
        self.upper[name.name] = min(self.upper.get(name.name, FAR), (most - rest) // factor)
        self._bound(name)
        return True

    def _linear(self, dim: Any, name: Any) -> tuple[int | None, int | None]:
        from tvm.sym import detect_linear_equation

        parts = detect_linear_equation(dim, [name])
        return (number_of(parts[0]), number_of(parts[1])) if len(parts) == 2 else (None, None)

    def expression(self, dim: Dim) -> Any:
        """Return a dim of a signature as an int or a TVM expression over this scope's variables."""
        return dim if isinstance(dim, int) else self._build(ast.parse(dim, mode="eval").body)

    def _build(self, node: ast.expr) -> Any:
        from tvm import tirx

        if isinstance(node, ast.Name):
            return self.variable(node.id)
        if isinstance(node, ast.Constant):
            return tirx.const(node.value, "int64")
        assert isinstance(node, ast.BinOp), "dim_of_text lets nothing else through"
        left, right = self._build(node.left), self._build(node.right)
        match OPERATORS[type(node.op)]:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "//":
                return tirx.floordiv(left, right)
            case _:
                return tirx.floormod(left, right)


def _int64(dim: Any) -> Any:
    from tvm import tirx

    return tirx.const(dim, "int64") if isinstance(dim, int) else dim

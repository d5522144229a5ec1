"""A kernel as a value: what one launch computes, as a graph of steps with one canonical form, its record's key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaxc.schedules.operators import Operator, operator_from

__all__ = ["COMMUTATIVE", "KERNEL", "OPERATOR", "Edge", "Kernel", "Operand", "Step", "Symbol"]

KERNEL = "relaxc.kernel"
"""The attribute of a PrimFunc that says what kernel it is, from its making to its schedule."""

OPERATOR = "operator"
"""The step that is the heavy operator of a kernel with a plan."""

COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "eq", "ne"})
"""Steps of which the order of inputs does not count."""

_SYMBOL = re.compile(r"\bs(\d+)\b")

Edge = tuple[int, str]
"""What a step reads, and how: the number of an operand or, behind all of these, of a step; and its role.

A role says which elements are read for one of the result: `full` the same one, `scalar` the only one, `channel` that of
its channel, `axes 0,2` that at its places along these axes; it is empty where the step itself says so.
"""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that a kernel reads. A size is a number or a term of symbols, `s0 * 4`; none where the operator has it
    all.
    """

    dtype: str
    shape: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on all elements, or a whole computation that is named by a digest of it (`tir 0123…`)."""

    name: str
    inputs: tuple[Edge, ...] = ()
    dtype: str = ""
    shape: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that is known at the call alone: its bounds, and what divides it."""

    minimum: int = 0
    maximum: int | None = None
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one launch computes. The steps stand behind what they read; `results` are numbers, as those of an edge.

    `operator` is what a plan is about, None where there is none. `nodes` are the model's nodes that it came from: they
    are no part of what it computes.
    """

    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    operator: Operator | None = None
    symbols: tuple[Symbol, ...] = ()
    nodes: tuple[str, ...] = ()

    def canonical(self) -> str:
        """Return one line that kernels share where they compute the same: whatever the order of operands, steps and
        symbols, and of the inputs of a step that is commutative.
        """
        return json.dumps(_Canonical(self).form(), separators=(",", ":"))

    @property
    def digest(self) -> str:
        """Return 16 hex digits that name the canonical form."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()[:16]

    @property
    def behind(self) -> str:
        """Return what is computed behind the operator, for people: ` +add.channel+max`."""
        words = [step.name + _role(step) for step in self.steps if step.name != OPERATOR and step.inputs]
        return f" +{'+'.join(words)}" if words and self.operator is not None else ""

    def to_json(self) -> str:
        """Return the kernel as one line of JSON, the form in which it travels; `from_json` is its inverse."""
        data = {
            "operands": [[each.dtype, each.shape] for each in self.operands],
            "steps": [[each.name, each.inputs, each.dtype, each.shape] for each in self.steps],
            "results": self.results,
            "operator": None if self.operator is None else self.operator.key(),
            "symbols": [[each.minimum, each.maximum, each.divisor] for each in self.symbols],
            "nodes": self.nodes,
        }
        return json.dumps(data)

    @staticmethod
    def from_json(text: str) -> Kernel:
        """Return the kernel that `to_json` described."""
        data: Mapping[str, Any] = json.loads(text)
        steps = [
            Step(name, tuple((int(at), str(role)) for at, role in inputs), dtype, tuple(shape))
            for name, inputs, dtype, shape in data["steps"]
        ]
        return Kernel(
            tuple(Operand(dtype, tuple(shape)) for dtype, shape in data["operands"]),
            tuple(steps),
            tuple(data["results"]),
            None if data["operator"] is None else operator_from(data["operator"]),
            tuple(Symbol(*each) for each in data["symbols"]),
            tuple(data["nodes"]),
        )


def _role(step: Step) -> str:
    """The role that is worth a word: of an operand that is not read element by element."""
    roles = [role for _, role in step.inputs if role not in ("", "full")]
    return f".{roles[0].replace(' ', '')}" if roles else ""


class _Canonical:
    """Numbers operands, steps and symbols in the order in which a walk from the results comes to them.

    Where inputs may change places, the walk goes by their colours: digests of what is below and around each, refined as
    Weisfeiler and Leman do. The form has the whole graph, so that equal forms are equal kernels whatever the colours.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._colors = _colors(kernel)
        self._numbers: dict[int, int] = {}
        self._symbols: dict[int, int] = {}
        self._lines: list[Any] = []

    def form(self) -> list[Any]:
        for result in self._kernel.results:
            self._visit(result)
        symbols = [self._kernel.symbols[old] for old in self._symbols]
        return [
            self._lines,
            [self._numbers[result] for result in self._kernel.results],
            None if self._kernel.operator is None else self._kernel.operator.key(),
            [[each.minimum, each.maximum, each.divisor] for each in symbols],
        ]

    def _visit(self, at: int) -> int:
        if at in self._numbers:
            return self._numbers[at]
        operand, step = _node(self._kernel, at)
        if operand is not None:
            line: list[Any] = [operand.dtype, self._sizes(operand.shape)]
        else:
            assert step is not None
            edges: Sequence[Edge] = step.inputs
            if step.name in COMMUTATIVE:
                edges = sorted(edges, key=lambda edge: (self._colors[edge[0]], edge[1]))
            inputs = [[self._visit(other), role] for other, role in edges]
            if step.name in COMMUTATIVE:  # what was numbered before goes first, whatever its color
                inputs.sort()
            line = [step.name, inputs, step.dtype, self._sizes(step.shape)]
        self._numbers[at] = len(self._numbers)
        self._lines.append(line)
        return self._numbers[at]

    def _sizes(self, shape: Sequence[int | str]) -> list[int | str]:
        return [size if isinstance(size, int) else _SYMBOL.sub(self._symbol, size) for size in shape]

    def _symbol(self, match: re.Match[str]) -> str:
        return f"s{self._symbols.setdefault(int(match[1]), len(self._symbols))}"


def _node(kernel: Kernel, at: int) -> tuple[Operand | None, Step | None]:
    count = len(kernel.operands)
    return (kernel.operands[at], None) if at < count else (None, kernel.steps[at - count])


def _colors(kernel: Kernel) -> list[str]:
    """A digest for each operand and step: equal ones may change places, as far as can be told from around them."""
    count = len(kernel.operands)
    nodes = range(count + len(kernel.steps))
    readers: dict[int, list[tuple[int, str]]] = {at: [] for at in nodes}
    for at, step in enumerate(kernel.steps, count):
        for place, (other, role) in enumerate(step.inputs):
            readers[other].append((at, f"{'' if step.name in COMMUTATIVE else place} {role}"))
    colors = [_own(kernel, at) for at in nodes]
    for _ in nodes:
        before = len(set(colors))
        colors = [_mixed(kernel, at, colors, readers[at]) for at in nodes]
        if len(set(colors)) == before:
            break
    return colors


def _own(kernel: Kernel, at: int) -> str:
    operand, step = _node(kernel, at)
    each = operand or step
    assert each is not None
    sizes = [_SYMBOL.sub(lambda match: str(kernel.symbols[int(match[1])]), str(size)) for size in each.shape]
    places = [place for place, result in enumerate(kernel.results) if result == at]
    return _digest([step.name if step else "", each.dtype, sizes, places])


def _mixed(kernel: Kernel, at: int, colors: Sequence[str], readers: Sequence[tuple[int, str]]) -> str:
    _, step = _node(kernel, at)
    below = [f"{colors[other]} {role}" for other, role in step.inputs] if step else []
    if step and step.name in COMMUTATIVE:
        below.sort()
    return _digest([colors[at], below, sorted(f"{colors[other]} {how}" for other, how in readers)])


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]

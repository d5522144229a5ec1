"""What calls of PrimFuncs compute, as a `Kernel`: read off the calls and what each does, and no name of theirs.

What does the same to each element becomes its operations; a heavy operator is the one of its plan; anything else is a
step that is named by a digest of its PrimFunc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from relaxc.schedules.ir import tir
from relaxc.schedules.ir.kernel import KERNEL, OPERATOR, Edge, Kernel, Operand, Step, Symbol
from relaxc.schedules.ir.roles import called_by_roles
from relaxc.schedules.ir.scalars import Scalar, scalar_of, structure_of
from relaxc.schedules.ir.types import PrimFunc, Size, Var
from relaxc.schedules.operators import Depthwise2d, Matmul, Operator
from relaxc.schedules.plan import plan_of

__all__ = ["Describer", "bare", "kernel_of", "whole_of"]

_STEP = 1 << 20
"""Added to the number of a step, as long as operands come along."""

Tensor = tuple[str, Sequence[Size]]
"""A dtype and a shape."""


class Describer:
    """One kernel that grows call by call; values are numbers that `operand` and `call` return."""

    def __init__(self) -> None:
        self._operands: list[Operand] = []
        self._steps: list[Step] = []
        self._known: dict[Step, int] = {}
        self._symbols: dict[Var, int] = {}
        self._operator: Operator | None = None

    def operand(self, tensor: Tensor) -> int:
        """Return a new operand."""
        self._operands.append(Operand(tensor[0], self._sizes(tensor[1])))
        return len(self._operands) - 1

    def call(self, func: PrimFunc, inputs: Sequence[int], results: Sequence[Tensor]) -> list[int]:
        """Return what a call of `func` gives for these inputs."""
        plan = plan_of(func)
        if plan is not None and self._operator is None and len(results) == 1:
            self._operator = plan.operator
            return [self._step(OPERATOR, [(each, "") for each in inputs], results[0])]
        scalar = scalar_of(func) if len(results) == 1 and len(results[0][1]) == len(func.params[-1].shape) else None
        if scalar is not None:
            return [self._scalar(scalar, inputs, results[0], {})]
        return self.whole(func, inputs, results)

    def whole(self, func: PrimFunc, inputs: Sequence[int], results: Sequence[Tensor]) -> list[int]:
        """Return what `call` does, as one step that is named by a digest of `func`."""
        whole = [(each, "") for each in inputs]
        if len(results) == 1:
            return [self._step(f"tir {structure_of(func)}", whole, results[0])]
        return [self._step(f"tir {structure_of(func)} {at}", whole, each) for at, each in enumerate(results)]

    def kernel(self, results: Sequence[int], nodes: Sequence[str] = ()) -> Kernel:
        """Return the kernel that gives these values; sizes that its operator has are in this alone."""
        count = len(self._operands)

        def at(value: int) -> int:
            return value - _STEP + count if value >= _STEP else value

        steps = [replace(step, inputs=tuple((at(other), role) for other, role in step.inputs)) for step in self._steps]
        operands, symbols = list(self._operands), tuple(Symbol() for _ in self._symbols)
        if self._operator is not None:
            shape = next(step.shape for step in steps if step.name == OPERATOR)
            kept = {at for step in steps if not _as_operator(step, shape) for at, _ in step.inputs}
            operands = [each if at in kept else replace(each, shape=()) for at, each in enumerate(operands)]
            steps = [replace(step, shape=()) if _as_operator(step, shape) else step for step in steps]
        return Kernel(tuple(operands), tuple(steps), tuple(map(at, results)), self._operator, symbols, tuple(nodes))

    def _step(self, name: str, inputs: Sequence[Edge], result: Tensor) -> int:
        step = Step(name, tuple(inputs), result[0], self._sizes(result[1]))
        if step not in self._known:
            self._known[step] = _STEP + len(self._steps)
            self._steps.append(step)
        return self._known[step]

    def _scalar(self, scalar: Scalar, inputs: Sequence[int], result: Tensor, known: dict[int, int]) -> int:
        """The step of the last operation of a scalar, those before it first; `known` are those of its parts by id."""
        if id(scalar) not in known:
            edges: list[Edge] = []
            for each in scalar.inputs:
                if each.operand is not None:
                    edges.append((inputs[each.operand], _role(each.axes, result[1], self._operator)))
                else:
                    role = "full" if each.inputs else "scalar"
                    edges.append((self._scalar(each, inputs, result, known), role))
            known[id(scalar)] = self._step(scalar.name, edges, (scalar.dtype, result[1] if edges else ()))
        return known[id(scalar)]

    def _sizes(self, shape: Sequence[Size]) -> tuple[int | str, ...]:
        return tuple(self._size(size) for size in shape)

    def _size(self, size: Size) -> int | str:
        from tvm import tirx

        known = tir.as_int(size)
        if known is not None:
            return known
        names = {}
        for var in tir.variables(size):
            names[var] = tirx.Var(f"s{self._symbols.setdefault(var, len(self._symbols))}", var.ty.dtype)
        return str(tir.substitute(size, names))


def kernel_of(func: PrimFunc) -> Kernel:
    """Return the kernel that a PrimFunc says it is; of one that says nothing, what a single call of it computes."""
    text = func.attrs.get(KERNEL) if func.attrs is not None else None
    if text is not None:
        return Kernel.from_json(str(text))
    return _alone(func, Describer.call)


def whole_of(func: PrimFunc) -> Kernel:
    """Return the kernel of a PrimFunc of which nothing but the whole is known."""
    return _alone(func, Describer.whole)


def _alone(func: PrimFunc, call: Callable[..., list[int]]) -> Kernel:
    from tvm import tirx

    buffers = [(str(param.dtype), list(param.shape)) for param in func.params if tirx.is_buffer_var(param)]
    written = _written(func)
    count = max(1, sum(param in written for param in func.params))
    describer = Describer()
    inputs = [describer.operand(each) for each in buffers[:-count]]
    return describer.kernel(call(describer, func, inputs, buffers[-count:]))


def bare(func: PrimFunc) -> PrimFunc:
    """Return the PrimFunc without what it says of itself, its blocks as its template calls them: what is scheduled."""
    if func.attrs is not None and KERNEL in func.attrs:
        func = func.without_attr(KERNEL)
    return called_by_roles(func)


def _as_operator(step: Step, shape: tuple[int | str, ...]) -> bool:
    """Whether it is the operator, or does the same to each element of its result: its sizes are the operator's."""
    return step.name == OPERATOR or (step.shape == shape and not step.name.startswith("tir "))


def _written(func: PrimFunc) -> Mapping[Any, None]:
    from tvm import tirx

    return dict.fromkeys(store.buffer for store in tir.collect(func.body, tirx.BufferStore))


def _role(axes: tuple[int, ...], shape: Sequence[Size], operator: Operator | None) -> str:
    """How an operand is read that has these axes of the result, in the layout of the model and not of the plan."""
    order, channel = _layout(len(shape), operator)
    live = list(dict.fromkeys(order[at] for at in range(len(shape)) if tir.as_int(shape[at]) != 1))
    read = list(dict.fromkeys(order[at] for at in axes if order[at] in live))
    if not read or read == live:
        return "full" if read else "scalar"
    if read == [channel]:
        return "channel"
    told = f"axes {','.join(map(str, read))}"
    if isinstance(operator, Matmul):  # whose rows are those of all leading axes
        told += f" of {'x'.join(str(tir.as_int(size) or '?') for size in shape)}"
    return told


def _layout(rank: int, operator: Operator | None) -> tuple[Sequence[int], int]:
    """Which axis of the model's layout each axis of a result is, and that of the channels; -1 where there is none."""
    if operator is None:
        return range(rank), -1
    if isinstance(operator, Depthwise2d) and operator.channels_last and rank == 4:
        return (0, 2, 3, 1), 1
    if hasattr(operator, "channels"):
        return ((0, 1, 2, 3, 1), 1) if rank == 5 else (range(rank), 1)
    return range(rank), rank - 1

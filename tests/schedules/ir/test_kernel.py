"""Kernels' keys: equal for equal work, whatever the order and the names, and for nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from relaxc.schedules.ir.kernel import COMMUTATIVE, OPERATOR, Edge, Kernel, Operand, Step, Symbol
from relaxc.schedules.operators import Conv2d, Matmul

DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "bool")
ROLES = ("full", "scalar", "channel", "axes 0", "axes 0,2")
NAMES = ("add", "mul", "max", "sub", "div", "pow", "tir 0123456789abcdef", "constant 0.5", "constant -0.5", "cast")
COUNT = 1000


def drawn(rng: random.Random) -> Kernel:
    """A kernel of up to five operands and ten steps, each of which some later one or the result reads."""
    symbols = tuple(Symbol(rng.randint(0, 3), rng.choice((None, 64)), rng.choice((1, 2, 8))) for _ in range(2))
    operands = tuple(
        Operand(rng.choice(DTYPES), (rng.choice((4, 8, "s0", "s1 * 4")), 8)) for _ in range(rng.randint(2, 5))
    )
    steps: list[Step] = []
    if rng.random() < 0.5:
        steps.append(Step(OPERATOR, ((0, ""), (1, "")), "float32"))
    while len(steps) < 10 and (len(steps) < 4 or rng.random() < 0.8):
        values = len(operands) + len(steps)
        inputs = [(rng.randrange(values), rng.choice(ROLES)) for _ in range(rng.randint(0, 1))]
        inputs.append((values - 1, "full"))
        steps.append(Step(rng.choice(NAMES), tuple(inputs), rng.choice(DTYPES), (8, "s0")))
    operator = None
    if steps[0].name == OPERATOR:
        operator = rng.choice(
            (Matmul(m=8, n=16, k=32), Conv2d(batch=1, channels=8, height=9, width=9, kernel=(3, 3), filters=8))
        )
    last = len(operands) + len(steps) - 1
    return Kernel(operands, tuple(steps), (last,), operator, symbols)


def shuffled(kernel: Kernel, rng: random.Random) -> Kernel:
    """The same kernel under other numbers: operands, symbols, steps as far as each stays behind what it reads, and the
    inputs of those that are commutative.
    """
    count = len(kernel.operands)
    order = rng.sample(range(count), count)
    waiting = list(range(count, count + len(kernel.steps)))
    while waiting:
        ready = [at for at in waiting if not {other for other, _ in kernel.steps[at - count].inputs} & set(waiting)]
        order.append(rng.choice(ready))
        waiting.remove(order[-1])
    places = {old: new for new, old in enumerate(order)}
    names = rng.sample(range(len(kernel.symbols)), len(kernel.symbols))

    def size(each: int | str) -> int | str:
        return (
            each
            if isinstance(each, int)
            else each.replace("s0", "sX").replace("s1", f"s{names[1]}").replace("sX", f"s{names[0]}")
        )

    def inputs(step: Step) -> tuple[Edge, ...]:
        edges = [(places[at], role) for at, role in step.inputs]
        if step.name in COMMUTATIVE:
            rng.shuffle(edges)
        return tuple(edges)

    operands = [replace(kernel.operands[at], shape=tuple(map(size, kernel.operands[at].shape))) for at in order[:count]]
    steps = [kernel.steps[at - count] for at in order[count:]]
    symbols = [kernel.symbols[names.index(at)] for at in range(len(names))]
    return replace(
        kernel,
        operands=tuple(operands),
        steps=tuple(replace(step, inputs=inputs(step), shape=tuple(map(size, step.shape))) for step in steps),
        results=tuple(places[at] for at in kernel.results),
        symbols=tuple(symbols),
        nodes=("other",),
    )


def _with_step(kernel: Kernel, at: int, **changed: object) -> Kernel:
    steps = list(kernel.steps)
    steps[at] = replace(steps[at], **changed)  # type: ignore[arg-type]
    return replace(kernel, steps=tuple(steps))


def _other_role(kernel: Kernel, rng: random.Random) -> Kernel:
    """A bias for a residual: an input is read in another way."""
    at = rng.choice([i for i, step in enumerate(kernel.steps) if step.inputs])
    inputs = list(kernel.steps[at].inputs)
    place = rng.randrange(len(inputs))
    inputs[place] = inputs[place][0], f"{inputs[place][1]} otherwise"
    return _with_step(kernel, at, inputs=tuple(inputs))


def _other_edge(kernel: Kernel, rng: random.Random) -> Kernel:
    """The last step reads one more value, or one less."""
    inputs = kernel.steps[-1].inputs
    if len(inputs) > 1 and rng.random() < 0.5:
        return _with_step(kernel, -1, inputs=inputs[1:])
    return _with_step(kernel, -1, inputs=(*inputs, (rng.randrange(len(kernel.operands)), "full")))


def _other_dtype(kernel: Kernel, rng: random.Random) -> Kernel:
    return _with_step(kernel, rng.randrange(len(kernel.steps)), dtype="float64")


def _other_step(kernel: Kernel, rng: random.Random) -> Kernel:
    at = rng.choice([i for i, step in enumerate(kernel.steps) if step.name != OPERATOR])
    return _with_step(kernel, at, name="constant 0.75")


def _other_divisor(kernel: Kernel, rng: random.Random) -> Kernel:
    del rng
    first, *rest = kernel.symbols  # each result is `s0` long
    return replace(kernel, symbols=(replace(first, divisor=first.divisor * 3), *rest))


def _other_operator(kernel: Kernel, rng: random.Random) -> Kernel:
    del rng
    if isinstance(kernel.operator, Matmul):
        return replace(kernel, operator=replace(kernel.operator, accumulate="float64"))
    if isinstance(kernel.operator, Conv2d):
        return replace(kernel, operator=replace(kernel.operator, padding=(1, 1, 1, 1)))
    return replace(kernel, operator=Matmul(m=1, n=1, k=1))


EDITS: dict[str, Callable[[Kernel, random.Random], Kernel]] = {
    "a role": _other_role,
    "an edge": _other_edge,
    "a dtype": _other_dtype,
    "a constant": _other_step,
    "a divisor": _other_divisor,
    "the operator": _other_operator,
}


@pytest.mark.parametrize("edit", EDITS)
def test_kernels_one_edit_apart_have_other_keys(edit: str) -> None:
    rng = random.Random(edit)
    for _ in range(COUNT // len(EDITS) + 1):
        kernel = drawn(rng)
        other = shuffled(EDITS[edit](kernel, rng), rng)
        assert other.digest != kernel.digest, (kernel, other)


def test_kernels_under_other_numbers_have_equal_keys() -> None:
    rng = random.Random(0)
    for _ in range(COUNT):
        kernel = drawn(rng)
        assert shuffled(kernel, rng).canonical() == kernel.canonical(), kernel


def test_it_travels_as_text() -> None:
    rng = random.Random(1)
    for _ in range(20):
        kernel = replace(drawn(rng), nodes=("layer.0/Conv",))
        assert Kernel.from_json(kernel.to_json()) == kernel


def test_inputs_of_a_subtraction_do_not_change_places() -> None:
    operands = (Operand("float32", (8,)), Operand("float32", (8,)))
    one, other = (
        Kernel(operands, (Step("exp", ((0, "full"),), "float32", (8,)), Step("sub", edges, "float32", (8,))), (3,))
        for edges in (((2, "full"), (1, "full")), ((1, "full"), (2, "full")))
    )
    assert one.digest != other.digest

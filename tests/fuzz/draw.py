"""A graph from a seed and an index alone: node after node, each kept where the references make something of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.case import Array, Case, type_of
from tests.fuzz.evaluate import Evaluator, NotEvaluated, is_float
from tests.fuzz.operators import NoDraw, is_undefined, node_of, operators
from tests.fuzz.pool import NoValue, Pool
from tests.fuzz.values import DTYPES

__all__ = ["Made", "draw"]

_MOST_ELEMENTS = 6000
_OPSETS = (9, 10, 11, 13, 14, 16, 17, 18, 18, 19, 20, 21, 22, 23, 23, 24, 24)
_TRIES = 3


@dataclass
class Made:
    """A case, with how many nodes of each operator and dtype it has, and which operators would not be drawn."""

    case: Case
    nodes: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)


def draw(seed: str, index: int, without: Sequence[str] = ()) -> Made:
    """Return the case with this index, the same whenever and wherever it is drawn, of all operators but `without`."""
    return _Drawing(f"{seed}:{index}", [op for op in operators() if op not in without]).run()


class _Drawing:
    def __init__(self, seed: str, ops: Sequence[str]) -> None:
        self.ops = ops
        self.chance = random.Random(seed)
        self.rng = np.random.default_rng(self.chance.getrandbits(64))
        self.options = _options(self.chance)
        self.is_symbolic = self.chance.random() < 0.35
        self.gives = self.chance.choice((0.0, 0.0, 0.0, 0.2, 0.6))
        """What share of the operands that rules make as constants, axes, sizes and weights, are inputs instead."""
        self.is_special = "precision" not in self.options and self.chance.random() < 0.5
        calls = 1 + self.is_symbolic + self.is_special
        self.opset = self.chance.choice(_OPSETS)
        self.pool = Pool(self.chance, self.rng, self.opset, calls, is_special=self.is_special)
        self.evaluator = Evaluator(self.opset)
        self.nodes: list[Any] = []
        self.made = Counter[str]()
        self.refused = Counter[str]()
        self.symbols: dict[str, dict[int, str]] = {}

    def run(self) -> Made:
        """Draw inputs, then nodes, then which values are outputs."""
        self._draw_inputs()
        wanted = self.chance.choice((5, 5, 6, 6, 8, 8, 10, 10, 12, 14, 16, 20, 25, 30, 40, 60))
        for _ in range(wanted * 12):
            if len(self.nodes) >= wanted:
                break
            self._draw_node(self.chance.choice(self.ops))
        return Made(self._case(), self.made, self.refused)

    def _draw_inputs(self) -> None:
        sizes = {name: self._sizes_of() for name in "nm"}
        main = self.chance.choice(("float32", "float32", "float32", "float32", *DTYPES))
        for _ in range(self.chance.randint(1, 3)):
            dtype = DTYPES[main if self.chance.random() < 0.6 else self.chance.choice(list(DTYPES))]
            rank = self.chance.choice((1, 2, 2, 3, 3, 4, 4, 4, 0, 5))
            shape: list[int | str] = [self.pool.size() for _ in range(rank)]
            if self.is_symbolic and rank and self.chance.random() < 0.8:
                shape[self.chance.choice((0, 0, self.chance.randrange(rank)))] = self.chance.choice("nnm")
            if _count([sizes[each][0] if isinstance(each, str) else each for each in shape]) > _MOST_ELEMENTS:
                continue
            shapes = [
                [sizes[each][call] if isinstance(each, str) else each for each in shape]
                for call in range(len(self.pool.envs))
            ]
            name = self.pool.input_of(shapes, dtype)
            self.symbols[name] = {axis: each for axis, each in enumerate(shape) if isinstance(each, str)}

    def _sizes_of(self) -> list[int]:
        """A symbol's size in each call; in that with special values it is the first's."""
        first, second = self.chance.sample((1, 2, 3, 4, 5, 6, 8, 16), 2)
        return [first, second, first] if self.is_symbolic else [first] * 3

    def _draw_node(self, op: str) -> None:
        for _ in range(_TRIES):
            try:
                if self._is_added(op):
                    return
            except (NoDraw, NoValue, NotEvaluated):
                pass
        self.refused[op] += 1

    def _is_added(self, op: str) -> bool:
        before = dict(self.pool.constants)
        inputs, attributes = node_of(op, self.pool)
        count = attributes.pop("outputs", 1)
        if [] in attributes.values():  # of which no type is known
            return False
        domain, _, name = op.rpartition("::")
        outputs = [self.pool.fresh() for _ in range(count)]
        node = helper.make_node(name, inputs, outputs, f"{name}_{outputs[0]}", domain=domain, **attributes)
        found = []
        for call in range(len(self.pool.envs)):
            given = [self.pool.array(each, call) if each else None for each in inputs]
            if is_undefined(op, attributes, given):
                self.pool.constants = before
                return False
            found.append(self.evaluator.checked(node, given, has_runtime=self.options["verify"]))
        if not all(map(_is_taken, found[0])) or (_is_dull(found[0]) and self.chance.random() < 0.9):
            self.pool.constants = before
            return False
        if any(a.shape != b.shape for a, b in zip(found[0], found[-1], strict=True)) and not self.is_symbolic:
            self.pool.constants = before  # data decides its shape: no other node would fit in both calls
            return False
        self.nodes.append(node)
        for name in inputs:
            if name in self.pool.constants and name not in before and self.chance.random() < self.gives:
                self.pool.give(name)
        for env, arrays in zip(self.pool.envs, found, strict=True):
            env.update(zip(outputs, arrays, strict=False))
        self.pool.names.extend(outputs)
        self.made[f"{op} {self.pool.dtype(inputs[0] if inputs and inputs[0] else outputs[0])}"] += 1
        return True

    def _case(self) -> Case:
        computed = [name for node in self.nodes for name in node.output]
        used = {name for node in self.nodes for name in node.input}
        outputs = [name for name in computed if name not in used or self.chance.random() < 0.1]
        envs = [{name: env[name] for name in self.pool.inputs} for env in self.pool.envs]
        types = {name: type_of(self.pool.array(name)) for name in outputs}
        return Case(
            self.nodes, self.pool.constants, outputs, envs, self.opset, {k: v for k, v in self.symbols.items() if v},
            self.options, types,
        ).needed()  # fmt: skip


def _options(chance: random.Random) -> dict[str, Any]:
    level = chance.choice((0, 1, 2, 2, 2, 3))
    found: dict[str, Any] = {"opt_level": level, "verify": chance.random() < 0.25}
    if chance.random() < 0.05:  # CUDA text, compiled and not run
        return {**found, "target": "cuda-sm90", "verify": False}
    if chance.random() < 0.15:
        found["precision"] = chance.choice(("bf16", "bf16", "fp16"))
    return found


def _is_taken(array: Array) -> bool:
    return array.size <= _MOST_ELEMENTS and array.dtype in DTYPES.values()


def _is_dull(arrays: list[Array]) -> bool:
    """Whether nothing would be seen of what is computed from them: no number, or one alone."""
    for array in arrays:
        values = array.astype(np.float64) if is_float(array.dtype) else array
        finite = values[np.isfinite(values)]
        if finite.size and (finite != finite.flat[0]).any():
            return False
    return True


def _count(shape: list[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64))

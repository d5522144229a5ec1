"""One graph to compile, with the inputs of each call and how it is compiled; as files, and cut to a smaller one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Array", "Case", "Env", "elem_type", "opsets_of", "type_of"]

Array = np.ndarray[Any, Any]
Env = dict[str, Array]
"""Input name → array: one call."""


def type_of(array: Array) -> tuple[int, int]:
    """Return what `Case.types` has of an output."""
    return elem_type(array), array.ndim


def elem_type(array: Array) -> int:
    """Return ONNX's number of an array's dtype."""
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def opsets_of(opset: int) -> list[Any]:
    """Return the imports of a model of this opset."""
    return [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]


@dataclass
class Case:
    """A graph: nodes in order, initializers, and inputs with the calls that they are drawn for.

    `symbols` names the dims of inputs that have no known size. `options` are compile options as JSON.
    """

    nodes: list[Any]
    constants: Env
    outputs: list[str]
    envs: list[Env]
    opset: int
    symbols: dict[str, dict[int, str]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    types: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Each output's element type, and how many dims it has."""

    def model(self) -> Any:
        """Return the ONNX model."""
        inputs = []
        for name, array in self.envs[0].items():
            dims: list[int | str] = list(array.shape)
            for axis, symbol in self.symbols.get(name, {}).items():
                dims[axis] = symbol
            inputs.append(helper.make_tensor_value_info(name, elem_type(array), dims))
        outputs = [
            helper.make_tensor_value_info(name, elem, [None] * rank)
            for name, (elem, rank) in ((name, self.types[name]) for name in self.outputs)
        ]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "fuzz", inputs, outputs, weights)
        return helper.make_model(graph, opset_imports=opsets_of(self.opset), ir_version=10)

    def needed(self) -> Case:
        """Return the case without what its outputs do not need."""
        wanted, nodes = set(self.outputs), []
        for node in reversed(self.nodes):
            if wanted & set(node.output):
                nodes.append(node)
                wanted |= set(node.input)
        envs = [{name: array for name, array in env.items() if name in wanted} for env in self.envs]
        if not envs[0]:  # a model without inputs is another kind of model
            envs = [dict(list(env.items())[:1]) for env in self.envs]
        constants = {name: array for name, array in self.constants.items() if name in wanted}
        return self._with(nodes=nodes[::-1], envs=envs, constants=constants)

    def showing(self, outputs: Sequence[str]) -> Case:
        """Return the case with these outputs alone."""
        return self._with(outputs=list(outputs)).needed()

    def given(self, name: str, values: Sequence[Array], symbols: Mapping[int, str]) -> Case:
        """Return the case with the value `name`, that a node computes, as an input: `values` an env."""
        nodes = [node for node in self.nodes if name not in node.output]
        envs = [{**env, name: value} for env, value in zip(self.envs, values, strict=True)]
        known = {**self.symbols, **({name: dict(symbols)} if symbols else {})}
        return self._with(nodes=nodes, envs=envs, symbols=known).needed()

    def alone(self, index: int) -> Case:
        """Return the case with one of its calls, all sizes known."""
        return self._with(envs=[self.envs[index]], symbols={})

    def _with(self, **changed: Any) -> Case:
        return Case(**{**vars(self), **changed})

    def save(self, folder: Path) -> None:
        """Write the case as files: `load` reads them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(self.model().SerializeToString())
        for index, env in enumerate(self.envs):
            arrays = [numpy_helper.from_array(array, name) for name, array in env.items()]
            graph = helper.make_graph([], "env", [], [], arrays)
            (folder / f"call{index}.pb").write_bytes(graph.SerializeToString())
        (folder / "options.json").write_text(json.dumps(self.options))

    @staticmethod
    def load(folder: Path) -> Case:
        """Return the case that `save` wrote."""
        model = onnx.load(folder / "model.onnx")
        envs = [_arrays(onnx.GraphProto.FromString(path.read_bytes())) for path in sorted(folder.glob("call*.pb"))]
        symbols = {
            each.name: {i: dim.dim_param for i, dim in enumerate(each.type.tensor_type.shape.dim) if dim.dim_param}
            for each in model.graph.input
        }
        return Case(
            list(model.graph.node), _arrays(model.graph), [each.name for each in model.graph.output], envs,
            model.opset_import[0].version, {name: dims for name, dims in symbols.items() if dims},
            json.loads((folder / "options.json").read_text()),
            {each.name: _type(each.type.tensor_type) for each in model.graph.output},
        )  # fmt: skip


def _type(tensor: Any) -> tuple[int, int]:
    return tensor.elem_type, len(tensor.shape.dim)


def _arrays(graph: Any) -> Env:
    return {each.name: numpy_helper.to_array(each) for each in graph.initializer}

"""LiftWeights and RecordFusions: what goes out of the module, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.service import compiler
from relaxc.service.passes import optimize
from relaxc.service.passes.common.constants import constant
from relaxc.service.passes.vm.lift_weights import LiftWeights
from relaxc.service.request import CompileOptions
from relaxc.service.runtime import load
from tests.frontend.onnx.harness import model, node, value, write
from tests.passes.graphs import TARGET, graph, random, run, weights


def net(x: Any) -> Any:
    """Two equal weights, one other, a scalar and a short vector."""
    first = op.add(op.matmul(x, weights(4, 8)), constant(np.float32(2)))
    second = op.add(op.matmul(x, weights(4, 8)), constant(np.arange(8, dtype="float32")))
    return op.matmul(op.add(first, second), weights(8, 8))


def test_large_constants_become_fields_of_the_last_parameter() -> None:
    module = graph(net, x=("n", 4))
    found: dict[str, Any] = {}
    lifted = LiftWeights(found)(module)
    assert list(found) == ["w0000", "w0001"]
    assert [tuple(map(int, tensor.shape)) for tensor in found.values()] == [(4, 8), (8, 8)]
    x, packed = lifted["main"].params
    assert x.name == "x"
    assert isinstance(packed.ty, relax.TupleType)
    assert len(packed.ty.fields) == 2
    assert int(lifted["main"].attrs["num_input"]) == 1
    relax.analysis.well_formed(lifted)


def test_the_same_module_gives_the_same_names() -> None:
    one, other = ({}, {})  # type: dict[str, Any], dict[str, Any]
    tvm.ir.assert_structural_equal(
        LiftWeights(one)(graph(net, x=(2, 4))), LiftWeights(other)(graph(net, x=(2, 4))), map_free_vars=True
    )
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name].numpy(), other[name].numpy())


def test_equal_bits_of_other_dtypes_are_other_weights() -> None:
    bits = np.zeros(64, "float32")
    found: dict[str, Any] = {}
    LiftWeights(found)(
        graph(
            lambda x, y: (op.add(x, constant(bits)), op.add(y, constant(bits.view("int32")))),
            x=(64,),
            y=("int32", (64,)),
        )
    )
    assert [str(tensor.dtype) for tensor in found.values()] == ["float32", "int32"]


def test_a_module_without_weights_takes_an_empty_tuple() -> None:
    optimized = optimize(graph(op.exp, x=(3,)), TARGET, CompileOptions())
    assert optimized.weights == {}
    x = random(3)
    np.testing.assert_allclose(run(optimized, x)[0], np.exp(x), rtol=1e-6)


def fusions(build: Any, **inputs: Any) -> dict[str, int]:
    return optimize(graph(build, **inputs), TARGET, CompileOptions(opt_level=1)).report.fusions


def test_an_addend_is_a_bias_or_a_residual() -> None:
    def layer(x: Any, r: Any) -> Any:
        return op.nn.relu(op.add(op.add(op.nn.conv2d(x, weights(4, 4, 1, 1)), weights(1, 4, 1, 1)), r))

    assert fusions(layer, x=("n", 4, 8, 8), r=("n", 4, 8, 8)) == {"conv2d + bias + residual + relu": 1}


def test_epilogues_join_their_contraction() -> None:
    def layer(activation: Any) -> Any:
        return lambda x: activation(op.add(op.matmul(x, weights(4, 8)), weights(8)))

    def hardswish(x: Any) -> Any:
        x = relax.BlockBuilder.current().emit(x)
        bounded = op.clip(op.add(x, constant(np.float32(3))), 0, 6)
        return op.multiply(x, op.divide(bounded, constant(np.float32(6))))

    activations = {
        "relu": op.nn.relu,
        "clip": lambda x: op.clip(x, 0, 6),
        "gelu": op.nn.gelu,
        "gelu_tanh": op.nn.gelu_tanh,
        "silu": op.nn.silu,
        "sigmoid": op.sigmoid,
        "tanh": op.tanh,
        "hardswish": hardswish,
    }
    for name, activation in activations.items():
        assert fusions(layer(activation), x=("n", 4)) == {f"matmul + bias + {name}": 1}


def test_gelu_and_a_sum_are_one_kernel() -> None:
    assert fusions(lambda x, y: op.add(op.nn.gelu(x), y), x=("n", 8), y=("n", 8)) == {"gelu + add": 1}


def test_a_fused_kernel_has_one_reduction() -> None:
    optimized = optimize(
        graph(lambda x: op.nn.gelu(op.add(op.matmul(x, weights(4, 8)), weights(8))), x=(3, 4)),
        TARGET,
        CompileOptions(opt_level=1),
    )
    (function,) = (f for f in optimized.module.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    schedule = tvm.s_tir.Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    reductions = [block for block in blocks if schedule.get(block).init is not None]
    assert len(reductions) == 1


def test_an_artifact_with_a_constant_of_no_elements_loads(tmp_path: Path) -> None:
    nodes = [node("ConstantOfShape", ["shape"], ["e"]), node("Mul", ["e", "two"], ["y"]), node("Relu", ["x"], ["z"])]
    held = {"shape": np.array([2, 0, 3]), "two": np.float32(2)}
    made = model(nodes, [value("x", [4])], [value("y", [2, 0, 3]), value("z", [4])], **held)
    compiler.run(compiler.prepare(write(tmp_path, made), target="x86-64-v3"), tmp_path, lambda event: None)
    got = load(tmp_path / "model.so")(x=np.array([-1, 0, 1, 2], "float32"))
    assert got["y"].shape == (2, 0, 3)
    assert got["z"].tolist() == [0, 0, 1, 2]

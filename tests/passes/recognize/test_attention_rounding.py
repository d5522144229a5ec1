"""Attention of a quantized network is one kernel that quantizes where the model does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from relaxc.schedules.cuda.attention.form import match
from relaxc.schedules.template import Declined
from relaxc.service.passes.layout.hoist_quantization import HoistQuantization
from relaxc.service.passes.recognize.recognize_low_attention import RecognizeLowAttention
from relaxc.service.passes.simplify.merge_quantized_matmuls import MergeQuantizedMatmuls
from tests.passes.graphs import TARGET, compute, graph, operators, random
from tests.passes.quantized import attention_of, data, projected, round_trip

X = ("uint8", (2, 9, 16))


def recognized(module: tvm.IRModule) -> tvm.IRModule:
    with TARGET:
        for each in (HoistQuantization(), MergeQuantizedMatmuls(), RecognizeLowAttention(match)):
            module = relax.transform.DeadCodeElimination()(each(module))
    return module


def attention_in(module: tvm.IRModule) -> Any:
    (func,) = (f for var, f in module.functions_items() if str(var.name_hint) == "attention")
    found = match(func)
    assert not isinstance(found, Declined)
    return found


def assert_same_but_for_boundaries(got: Any, want: Any) -> None:
    """Sums in another order may put a value on the other side of a boundary between two steps."""
    off = np.abs(got.astype(int) - want.astype(int))
    assert off.max() <= 1 and (off > 0).mean() < 0.01


@pytest.mark.parametrize("masked", [False, True])
def test_a_layer_is_a_product_and_one_attention(masked: bool) -> None:
    mask = np.where(np.arange(9) < [[9], [5]], 0, np.finfo("float32").min).astype("float32").reshape(2, 1, 1, 9)

    def net(x: relax.Expr, *masks: relax.Expr) -> relax.Expr:
        return attention_of(*(projected(x, seed) for seed in (1, 2, 3)), mask=masks[0] if masks else None)

    inputs = {"x": X, "mask": ("float32", mask.shape)} if masked else {"x": X}
    module, arrays = graph(net, **inputs), [data(), mask][: len(inputs)]
    changed = recognized(module)
    assert operators(changed)[-1] == "attention" and operators(changed).count("matmul") == 1
    assert_same_but_for_boundaries(compute(changed, *arrays)[0], compute(module, *arrays)[0])
    found = attention_in(changed)
    assert found.rounded and found.finish and found.logit.text
    assert str(found.out.buffer.dtype) == "uint8" and len(found.operands) >= 8 + masked


def test_weights_whose_zeros_do_not_stay_zeros_are_left_alone() -> None:
    """Keys that are hidden, and those behind the last, have to have no weight."""

    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), "float32"))
        quantized = emit(
            op.quantize(emit(op.nn.softmax(scores, -1)), relax.const(0.003), relax.const(3, "uint8"), 1, "uint8")
        )
        weights = emit(op.dequantize(quantized, relax.const(0.003), relax.const(0, "uint8"), 1, "float32"))
        return op.matmul(emit(op.astype(weights, "float16")), v, "float32")

    module = graph(net, **dict.fromkeys("qkv", ("float16", (1, 2, 9, 8))))
    assert "attention" not in operators(recognized(module))


def test_scores_that_something_else_reads_are_left_alone() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> tuple[relax.Expr, ...]:
        emit = relax.BlockBuilder.current().emit
        scores = emit(round_trip(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), "float32")), 0.03))
        weights = emit(op.astype(emit(op.nn.softmax(scores, -1)), "float16"))
        return emit(op.matmul(weights, v, "float32")), scores

    module = graph(net, **dict.fromkeys("qkv", ("float16", (1, 2, 9, 8))))
    assert "attention" not in operators(recognized(module))


def test_a_result_in_16_bits_that_was_quantized() -> None:
    def net(q: relax.Expr, k: relax.Expr, v: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])), "float32"))
        weights = emit(op.astype(emit(op.nn.softmax(scores, -1)), "float16"))
        values = emit(round_trip(emit(op.matmul(weights, v, "float32")), 0.02))
        return op.astype(values, "float16")

    arrays = [random(1, 2, 9, 8, seed=seed, dtype="float16") for seed in range(3)]
    module = graph(net, **dict.fromkeys("qkv", ("float16", (1, 2, 9, 8))))
    changed = recognized(module)
    assert operators(changed)[-1] == "attention"
    got, want = (compute(each, *arrays)[0].astype("float32") for each in (changed, module))
    off = np.abs(got - want)
    assert off.max() <= 0.0201 and (off > 1e-3).mean() < 0.02
    assert attention_in(changed).finish

"""NHWC for a GPU's templates: the form that graphs take, and that they compute what was asked (on a CPU here)."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax

from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.attention.attention_sm80 import AttentionSm80
from relaxc.schedules.cuda.gemm.gemm_sm80 import GemmSm80
from relaxc.schedules.template import Schedule
from relaxc.service.passes import optimize
from relaxc.service.request import CompileOptions, Precision
from tests.passes.graphs import TARGET, graph, weights
from tests.passes.layout.nhwc import conv, low, same

R = relax.op


def test_a_residual_block_is_permuted_at_its_ends_only() -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = low(R.nn.relu(R.add(conv(x, 16, 8, padding=1, strides=2), weights(1, 16, 1, 1))))
        y = R.add(conv(y, 16, 16, padding=1), weights(1, 16, 1, 1))
        return low(R.nn.relu(R.add(y, R.add(conv(x, 16, 8, 1, strides=2), weights(1, 16, 1, 1)))))

    found = same(net, x=(2, 8, 9, 11))
    assert found[0] == "permute_dims" and found[-1] == "permute_dims" and found.count("permute_dims") == 2


HOPPERS = [*["cuda.conv2d_sm90"] * 3, "cuda.gemm_sm90", "cuda.lines_sm90", "cuda.spread", *["cuda.windows"] * 2]
AMPERES = [*["cuda.conv2d_sm80"] * 4, "cuda.reductions", "cuda.spread", *["cuda.windows"] * 2]


@pytest.mark.parametrize(
    ("arch", "precision", "wanted"),
    [
        ("sm_90a", Precision.FP16, HOPPERS),
        ("sm_80", Precision.FP16, AMPERES),
        ("sm_120", Precision.FP16, AMPERES),
        ("sm_90a", None, AMPERES),
        ("sm_80", Precision.TF32, AMPERES),
    ],
)
def test_a_small_resnet_has_kernels_of_templates_only(
    arch: str, precision: Precision | None, wanted: list[str]
) -> None:
    def net(x: relax.Expr) -> relax.Expr:
        y = R.nn.max_pool2d(R.nn.relu(image(x, 64, 3, 7, strides=2, padding=3)), 3, 2, 1)
        z = R.nn.relu(image(y, 64, 64, padding=1))
        y = R.nn.relu(R.add(image(z, 128, 64, padding=1, strides=2), image(y, 128, 64, 1, strides=2)))
        return R.matmul(R.flatten(R.nn.adaptive_avg_pool2d(y, 1)), weights(128, 16))

    def image(x: relax.Expr, filters: int, channels: int, size: int = 3, **geometry: Any) -> relax.Expr:
        value = R.nn.conv2d(x, weights(filters, channels, size, size), **geometry)
        return R.add(value, weights(1, filters, 1, 1))

    target = tvm.target.Target({"kind": "cuda", "arch": arch}, host=TARGET)
    made = optimize(graph(net, x=(1, 3, 32, 32)), target, CompileOptions(precision=precision))
    rules = {}
    for gvar, func in made.module.functions_items():
        if isinstance(func, tvm.tirx.PrimFunc):
            taken = (rule.name for rule in RULES if isinstance(rule.apply(func, target), Schedule))
            rules[gvar.name_hint] = next(taken)
    assert sorted(rules.values()) == wanted, rules


def test_a_gpu_before_hopper_has_its_products_side_by_side_as_one_and_attention_in_one_kernel() -> None:

    def net(x: relax.Expr) -> relax.Expr:
        q, k, v = (heads(R.matmul(x, weights(64, 32, seed=seed))) for seed in range(3))
        mixed = R.matmul(R.nn.softmax(R.matmul(q, R.permute_dims(k, [0, 1, 3, 2]))), v)
        joined = R.reshape(R.permute_dims(mixed, [0, 2, 1, 3]), (2, 16, 32))
        return R.add(R.nn.gelu(R.matmul(joined, weights(32, 64))), x)

    def heads(x: relax.Expr) -> relax.Expr:
        return R.permute_dims(R.reshape(x, (2, 16, 4, 8)), [0, 2, 1, 3])

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host=TARGET)
    made = optimize(graph(net, x=(2, 16, 64)), target, CompileOptions(precision=Precision.FP16))
    funcs = [func for _, func in made.module.functions_items() if isinstance(func, tvm.tirx.PrimFunc)]
    taken = [func for func in funcs if isinstance(GemmSm80().apply(func, target), Schedule)]
    assert sorted(int(func.params[-1].shape[-1]) for func in taken) == [64, 96]
    assert sum(isinstance(AttentionSm80().apply(func, target), Schedule) for func in funcs) == 1

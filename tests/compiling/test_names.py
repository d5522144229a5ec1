"""Names of functions, blocks and buffers decide nothing: under others between the phases a model has the same code."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import tvm_ffi
from tvm import relax, tirx

from relaxc.service.lowering import schedule
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.passes import optimize, run_phases
from relaxc.service.request import CompileOptions, Precision
from tests.passes.graphs import graph, weights
from tests.renamed import renamed

op = relax.op


def emit(value: Any) -> Any:
    return relax.BlockBuilder.current().emit(value)


def images(x: Any) -> Any:
    """Convolutions, one depthwise and one in Winograd's form, with what is behind them; pools, rows of what is left."""
    y = emit(op.nn.relu(op.add(emit(op.nn.conv2d(x, weights(32, 32, 3, 3), padding=1)), weights(1, 32, 1, 1))))
    y = emit(op.add(op.nn.conv2d(y, weights(32, 1, 3, 3), padding=1, groups=32), x))
    y = emit(op.nn.max_pool2d(op.nn.gelu(y), (2, 2), (2, 2)))
    rows = emit(op.reshape(op.nn.avg_pool2d(y, (7, 7)), (1, 32)))
    rows = emit(op.nn.layer_norm(op.max(y, [2, 3]) + rows, weights(32), weights(32, seed=1), axes=[-1]))
    return op.nn.softmax(op.matmul(rows, weights(32, 24)))


def heads(x: Any) -> Any:
    """Attention between products, with a norm before them."""
    x = emit(op.nn.layer_norm(x, weights(64), weights(64, seed=1), axes=[-1]))
    q, k, v = (
        emit(op.permute_dims(op.reshape(op.matmul(x, weights(64, 64, seed=n)), (1, 16, 4, 16)), [0, 2, 1, 3]))
        for n in range(3)
    )
    scores = emit(op.nn.softmax(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])) * relax.const(0.25, "float32")))
    together = op.reshape(op.permute_dims(op.matmul(scores, v), [0, 2, 1, 3]), (1, 16, 64))
    return op.nn.silu(op.add(op.matmul(together, weights(64, 64, seed=4)), weights(64)))


CASES = {
    "images": (images, (1, 32, 14, 14), "x86-64-v3", None),
    "images with tile registers": (images, (1, 32, 14, 14), "sapphirerapids", Precision.BF16),
    "images on a GPU": (images, (1, 32, 14, 14), "cuda-sm90", Precision.FP16),
    "heads": (heads, (1, 16, 64), "x86-64-v4", None),
    "heads on a GPU": (heads, (1, 16, 64), "cuda-sm90", Precision.FP16),
}


@pytest.mark.parametrize("case", CASES)
def test_other_names_give_the_same_code(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, shape, name, precision = CASES[case]
    spec, options = resolve(name), CompileOptions(precision=precision)

    def made(run: Any) -> tuple[Counter[Any], Counter[int]]:
        monkeypatch.setattr(run_phases, "_run", run)
        module = optimize(graph(build, x=shape), to_tvm(spec), options).module
        found = schedule(module, spec)
        rows = Counter((row["workload"], row["shapes"], row["rule"], str(row["parameters"])) for row in found.report)
        functions = [func for func in found.module.functions.values() if isinstance(func, tirx.PrimFunc)]
        return rows, Counter(tvm_ffi.structural_hash(func) for func in functions)

    original = run_phases._run
    seeds = iter(range(100))
    rows, code = made(original)
    other_rows, other_code = made(lambda *given, **more: renamed(original(*given, **more), next(seeds)))
    assert rows == other_rows
    assert code == other_code

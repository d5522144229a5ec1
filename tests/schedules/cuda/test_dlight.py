"""dlight's rules: what they leave to the CPU is declined."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from benchmarks.gpu.fused import prim_func_of
from schedules.cuda import RULES
from schedules.cuda.dlight import Dlight
from schedules.template import Declined, Schedule
from service.lowering.target import resolve, to_tvm


def _patches():
    """A transposed image behind a class token, as a vision transformer has them."""
    image = relax.Var("image", relax.TensorType((1, 64, 14, 14), "float16"))
    token = relax.Var("token", relax.TensorType((1, 1, 64), "float16"))
    block = relax.BlockBuilder()
    with block.function("main", [image, token]):
        with block.dataflow():
            rows = block.emit(op.permute_dims(op.reshape(image, (1, 64, 196)), [0, 2, 1]))
            both = block.emit(op.concat([token, rows], axis=1))
            result = block.emit_output(op.astype(both, "float32"))
        block.emit_func_output(result)
    return prim_func_of(block.get())


def test_a_schedule_with_loops_outside_of_kernels_is_declined():
    target = to_tvm(resolve("cuda-sm90"))
    results = {rule.name: rule.apply(_patches(), target) for rule in RULES}
    declined = results["cuda.transpose"]
    assert isinstance(declined, Declined) and "leave loops to the CPU" in declined.reason
    assert isinstance(results["cuda.fallback"], Schedule)


def test_an_exception_of_a_rule_is_a_decline():
    class Breaks:
        def apply(self, *_):
            raise TypeError("not an integer")

    result = Dlight("cuda.broken", Breaks(), "").apply(_patches(), to_tvm(resolve("cuda-sm90")))
    assert isinstance(result, Declined) and "not an integer" in result.reason

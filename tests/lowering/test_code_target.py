"""Options for LLVM: it knows them, and loops of ours that it could unroll stay loops."""

from __future__ import annotations

import pytest
import tvm
from tvm.script import tirx as T

from relaxc.service.lowering.code_target import to_code_target
from relaxc.service.lowering.objects import compiled
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.process.timings import Timings


@T.prim_func(s_tir=True)
def clear(sums: T.Buffer((128, 384), "float32")) -> None:
    """Clear the accumulators of a product whose depth is split, tile by tile of 8x48."""
    T.func_attr({"global_symbol": "clear", "tirx.noalias": True})
    for panel, tile in T.grid(8, 16):
        for row in T.unroll(8):
            for vector in T.unroll(3):
                for lane in T.vectorized(16):
                    with T.sblock("zero"):
                        i = T.axis.spatial(128, tile * 8 + row)
                        j = T.axis.spatial(384, panel * 48 + vector * 16 + lane)
                        sums[i, j] = T.float32(0)


@pytest.mark.parametrize("target", ["x86-64-v4", "aarch64"])
def test_llvm_leaves_loops_around_unrolled_tiles_alone(target: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = compiled(tvm.IRModule({"clear": clear}), resolve(target), Timings())
    assert made.inspect_source("ll").count("llvm.memset") < 128
    assert "not an LLVM option" not in capfd.readouterr().err


def test_kernels_are_scheduled_without_the_options_and_a_gpus_code_has_none() -> None:
    assert "cl-opt" in to_code_target(resolve("x86-64-v3")).attrs
    assert "cl-opt" not in to_tvm(resolve("x86-64-v3")).attrs
    assert "cl-opt" not in to_code_target(resolve("cuda-sm90")).attrs

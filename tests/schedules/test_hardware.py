"""The hardware rows: chosen by target, and refused when they contradict themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from schedules.hardware import CPUS, GPUS, cpu_of, gpu_of
from service.lowering.target import resolve, tags, to_tvm


@pytest.mark.parametrize("spec", [*tags(), resolve("auto")], ids=lambda spec: spec.name)
def test_every_target_has_a_row(spec):
    if spec.kind == "cuda":
        assert gpu_of(to_tvm(spec)).arch == spec.arch
        return
    row = cpu_of(to_tvm(spec))
    assert (row.vector_bits, row.cores) == (spec.vector_bits, spec.cores)
    assert row.lanes(32) == spec.vector_bits // 32 and row.lanes(1024) == 1


def test_the_target_can_ask_for_shorter_vectors():
    spec = resolve('{"kind":"llvm","mcpu":"x86-64-v4","vector_bits":256,"cores":7}')
    assert (cpu_of(to_tvm(spec)).vector_bits, cpu_of(to_tvm(spec)).cores) == (256, 7)


def test_later_gpus_take_the_row_of_their_family():
    assert gpu_of(to_tvm(resolve('{"kind":"cuda","arch":"sm_89"}'))).name == "A100"
    assert gpu_of(to_tvm(resolve('{"kind":"cuda","arch":"sm_120"}'))).name == "H100"


@pytest.mark.parametrize(
    "wrong",
    [
        {"vector_bits": 100},
        {"vector_registers": 8},
        {"l1_bytes": 1 << 30},
        {"cores": 0},
        {"fma_latency": 40},
        {"l3_bytes_per_cycle": 0.0},
    ],
)
def test_a_cpu_row_checks_itself(wrong):
    with pytest.raises(AssertionError):
        replace(CPUS["x86-64-v4"], **wrong)


@pytest.mark.parametrize("wrong", [{"mma": (16, 8, 5)}, {"shared_bytes_per_block": 1 << 30}, {"threads_per_sm": 1000}])
def test_a_gpu_row_checks_itself(wrong):
    with pytest.raises(AssertionError):
        replace(GPUS["sm_90"], **wrong)


def test_rows_are_frozen():
    with pytest.raises(FrozenInstanceError):
        CPUS["znver4"].cores = 3  # type: ignore[misc]

"""The hardware rows: chosen by target, and refused when they contradict themselves."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest

from relaxc.schedules.hardware import CPUS, GPUS, Costs, Cpu, Dot, cpu_of, gpu_of
from relaxc.service import machine
from relaxc.service.lowering.target import resolve, tags, to_tvm
from tests.test_layers import ROOT

ARCHS = {"sm_80": 99, "sm_89": 99, "sm_90": 99, "sm_90a": 227, "sm_120": 99, "sm_120a": 99}
"""The KiB of shared memory that code for each may take."""


@pytest.mark.parametrize("spec", [*tags(), resolve("auto")], ids=lambda spec: spec.name)
def test_every_target_has_a_row(spec):
    if spec.kind == "cuda":
        assert gpu_of(to_tvm(spec)).arch == spec.arch
        return
    row = cpu_of(to_tvm(spec))
    assert (row.vector_bits, row.cores) == (spec.vector_bits, spec.cores)
    assert row.lanes(32) == spec.vector_bits // 32 and row.lanes(1024) == 1
    assert row.lanes("bfloat16") == 2 * row.lanes("float32") == row.lanes("bool") // 2


def test_the_target_can_ask_for_shorter_vectors():
    spec = resolve('{"kind":"llvm","mcpu":"x86-64-v4","vector_bits":256,"cores":7}')
    assert (cpu_of(to_tvm(spec)).vector_bits, cpu_of(to_tvm(spec)).cores) == (256, 7)


def test_later_gpus_take_the_row_of_their_family():
    assert gpu_of(to_tvm(resolve('{"kind":"cuda","arch":"sm_89"}'))).name == "A100"
    assert gpu_of(to_tvm(resolve('{"kind":"cuda","arch":"sm_120"}'))).name == "H100"


def test_code_for_later_devices_takes_the_shared_memory_that_all_of_them_have():
    rows = {arch: gpu_of(to_tvm(resolve(json.dumps({"kind": "cuda", "arch": arch})))) for arch in ARCHS}
    assert {arch: row.shared_bytes_of_code >> 10 for arch, row in rows.items()} == ARCHS
    assert [arch for arch, row in rows.items() if row.has_clusters and row.has_early_launches] == [*ARCHS][2:]


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


@pytest.mark.parametrize(
    "wrong", [{"mma": (16, 8, 5)}, {"mma": (8, 8, 8)}, {"shared_bytes_per_block": 1 << 30}, {"threads_per_sm": 1000}]
)
def test_a_gpu_row_checks_itself(wrong):
    with pytest.raises(AssertionError):
        replace(GPUS["sm_90"], **wrong)


def test_rows_are_frozen():
    with pytest.raises(FrozenInstanceError):
        CPUS["znver4"].cores = 3  # type: ignore[misc]


def cpu(mcpu: str, *features: str, **more: object) -> Cpu:
    """The row of a target with these features besides what its level implies."""
    return cpu_of(to_tvm(resolve(json.dumps({"kind": "llvm", "mcpu": mcpu, "features": features, **more}))))


ARM = {"triple": "aarch64-linux-gnu"}
AMX = ("avx512vnni", "avx512bf16", "amx-tile", "amx-bf16", "amx-int8")

FASTEST = {
    "AVX2 float32": (cpu("x86-64-v3"), "float32", ("llvm.fma", 1, 8, 1)),
    "SSE float32": (cpu("x86-64-v2"), "float32", ("", 1, 4, 1)),
    "AVX2 bfloat16": (cpu("x86-64-v3"), "bfloat16", ("", 1, 8, 1)),
    "AVX2 float64": (cpu("x86-64-v3"), "float64", ("llvm.fma", 1, 4, 1)),
    "AVX2 int16": (cpu("x86-64-v3"), "int16", ("llvm.x86.avx2.pmadd.wd", 1, 8, 2)),
    "AVX-VNNI": (cpu("x86-64-v3", "avxvnni"), ("uint8", "int8"), ("llvm.x86.avx512.vpdpbusd.256", 1, 8, 4)),
    "VNNI": (cpu("x86-64-v4", "avx512vnni"), ("uint8", "int8"), ("llvm.x86.avx512.vpdpbusd.512", 1, 16, 4)),
    "VNNI on 256 bits": (
        *(cpu("x86-64-v4", "avx512vnni", vector_bits=256), ("uint8", "int8")),
        ("llvm.x86.avx512.vpdpbusd.256", 1, 8, 4),
    ),
    "VNNI signed": (cpu("x86-64-v4", "avx512vnni"), "int8", ("", 1, 16, 1)),
    "BF16": (cpu("znver4"), "bfloat16", ("llvm.x86.avx512bf16.dpbf16ps.512", 1, 16, 2)),
    "AMX bf16": (cpu("x86-64-v4", *AMX), "bfloat16", ("llvm.x86.tdpbf16ps", 16, 16, 32)),
    "AMX int8": (cpu("x86-64-v4", *AMX), "int8", ("llvm.x86.tdpbssd", 16, 16, 64)),
    "AMX float16": (cpu("x86-64-v4", *AMX), "float16", ("", 1, 16, 1)),
    "NEON": (cpu("generic", **ARM), "float32", ("llvm.fma", 1, 4, 1)),
    "NEON bf16": (cpu("generic", "bf16", **ARM), "bfloat16", ("llvm.aarch64.neon.bfmmla", 2, 2, 4)),
    "SDOT": (cpu("generic", "dotprod", **ARM), "int8", ("llvm.aarch64.neon.sdot", 1, 4, 4)),
    "SMMLA": (cpu("generic", "dotprod", "i8mm", **ARM), "int8", ("llvm.aarch64.neon.smmla", 2, 2, 8)),
}


@pytest.mark.parametrize(("row", "operands", "found"), FASTEST.values(), ids=FASTEST)
def test_the_fastest_instruction_for_its_operands(row, operands, found):
    dot = row.dot(operands)
    assert (dot.intrinsic, dot.m, dot.n, dot.k) == found
    assert dot.operands == (operands if isinstance(operands, tuple) else (operands, operands))
    assert dot.accumulate in {"float32", "float64", "int32"} and dot.rate >= row.reference(operands).rate


def test_bf16_vectors_are_slower_than_widening_on_sapphire_rapids():
    """Measured: VDPBF16PS starts every second cycle there, where two multiply-adds start in each."""
    row = replace(CPUS["sapphirerapids"], features=frozenset({"fma", "avx512f", "avx512bf16"}))
    assert row.dot("bfloat16") == row.reference("bfloat16")


@pytest.mark.parametrize("operands", ["float32", "float16", "bfloat16", "int8", "uint8", "int16", ("uint8", "int8")])
@pytest.mark.parametrize("name", CPUS)
def test_every_cpu_multiplies_everything(name, operands):
    dot = CPUS[name].dot(operands)
    assert dot.fits_cpu(CPUS[name].vector_bits) and dot.rate > 0
    assert CPUS[name].reference(operands).intrinsic == "" or operands == "float32"


def test_the_accumulator_may_be_asked_for():
    row = cpu("x86-64-v4", "avx512fp16")
    assert (row.dot("float16").accumulate, row.dot("float16").intrinsic) == ("float32", "")
    assert (row.dot("float16", "float16").n, row.dot("float16", "float16").intrinsic) == (32, "llvm.fma")
    assert row.dot("float32", "float64").n == 8
    with pytest.raises(ValueError, match="no dtype"):
        row.dot("complex")


def test_llvm_knows_the_instructions_of_cpus():
    from tvm.target import codegen

    everything = frozenset(feature for arch in ("x86_64", "aarch64") for feature in machine.known_features(arch))
    rows = [replace(CPUS["x86-64-v4"], vector_bits=bits, features=everything) for bits in (128, 256, 512)]
    names = {dot.intrinsic for row in rows for dot in row.dots} - {""}
    assert len(names) > 20
    assert [name for name in names if not codegen.llvm_lookup_intrinsic_id(name)] == []


WRONG_DOTS = {
    "nothing": {"k": 0},
    "never": {"throughput": 0.0},
    "float into int": {"accumulate": "int32"},
    "narrower sums": {"operands": ("float64", "float64")},
    "three deep": {"k": 3},
    "no dtype": {"accumulate": "float"},
}


@pytest.mark.parametrize("wrong", WRONG_DOTS.values(), ids=WRONG_DOTS)
def test_an_instruction_checks_itself(wrong):
    with pytest.raises((AssertionError, ValueError)):
        replace(Dot(("bfloat16", "bfloat16"), "float32", 1, 16, 2, "dpbf16ps", 1.0, 6), **wrong)


def test_tensor_cores_multiply_at_the_peak_of_the_whitepaper():
    """312 and 989 dense fp16 TFLOP/s, at 1.41 and 1.83 GHz; int8 doubles that, tfloat32 halves it."""
    for arch, tera, ghz in (("sm_80", 312, 1.41), ("sm_90", 989, 1.83)):
        gpu = GPUS[arch]
        for dtype, factor in (("float16", 1), ("bfloat16", 1), ("int8", 2), ("tfloat32", 0.5)):
            dot = gpu.dot(dtype)
            assert 2 * dot.rate * gpu.sms * ghz / 1e3 == pytest.approx(tera * factor, rel=0.01), dot
        assert gpu.dot("float32") is None
        assert (gpu.dot("float16").m, gpu.dot("float16").n, gpu.dot("float16").k) == gpu.mma
    assert GPUS["sm_90"].dot("float8_e4m3fn").k == 32 and GPUS["sm_80"].dot("float8_e4m3fn") is None


@pytest.mark.parametrize("wrong", [{"source": ""}, {"transform": 0.0}, {"panel_rows": 0}, {"direct_efficiency": 1.5}])
def test_measured_costs_check_themselves(wrong):
    with pytest.raises(AssertionError):
        replace(Costs(), **wrong)


def test_what_was_measured_on_a_machine_is_in_its_row():
    """A template has no constant in cycles, bytes a cycle or parts of the peak of its own."""
    named = re.compile(r"^_?[A-Z_]*(CYCLES|EFFICIENCY|OVERHEAD|PER_CYCLE)[A-Z_]* *[:=]", re.MULTILINE)
    files = [*(ROOT / "schedules").rglob("*.py"), *(ROOT / "service/passes").rglob("*.py")]
    found = {str(path.relative_to(ROOT)): named.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_register_tiles_leave_registers_for_operands():
    for row in CPUS.values():
        for vectors in (1, 2, 3, 4):
            used = row.tile_rows(vectors) * vectors + vectors + 1
            assert used <= row.vector_registers < used + vectors, (row.name, vectors)

"""Targets from text: what is taken, what is refused, and what a machine is told that it lacks."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from relaxc.service import machine
from relaxc.service.errors import InvalidTarget
from relaxc.service.lowering import target
from relaxc.service.lowering.target import resolve, tags, to_tvm
from relaxc.service.lowering.target_list import one_of_many
from relaxc.service.machine import Cpu, Gpu, missing_features, parse_cpuinfo
from relaxc.service.request import TargetSpec


@pytest.fixture
def this_cpu(monkeypatch: pytest.MonkeyPatch):
    """Pretends to be a CPU with the given features."""

    def pretend(*features: str, arch: str = "x86_64", vendor: str = "GenuineIntel", cores: int = 2) -> None:
        monkeypatch.setattr(machine, "cpu", lambda: Cpu(arch, vendor, frozenset(features), cores))

    return pretend


def test_auto_is_this_cpu_and_runs_here():
    spec = resolve("auto")
    assert spec.kind == "llvm" and spec.cores >= 1
    assert missing_features(spec) == []


@pytest.mark.parametrize("name", [spec.name for spec in tags()])
def test_a_tag_does_not_depend_on_the_machine(name, this_cpu):
    before = resolve(name)
    this_cpu(arch="riscv64", cores=77)
    assert resolve(name) == before and before.name == name


@pytest.mark.parametrize("spec", tags(), ids=lambda spec: spec.name)
def test_a_spec_is_its_own_json(spec):
    assert resolve(json.dumps(spec.to_dict())) == spec
    to_tvm(spec)


def test_the_level_and_the_family_follow_the_features(this_cpu):
    this_cpu(*target._V4, "avx512bf16", "avx512fp16", "avx512vnni")
    spec = resolve("auto")
    assert (spec.name, spec.mcpu, spec.vector_bits) == ("sapphirerapids", "x86-64-v4", 512)
    assert "avx512fp16" in spec.features
    this_cpu(*target._V2, "avx")
    assert (resolve("auto").mcpu, resolve("auto").vector_bits) == ("x86-64-v2", 256)
    this_cpu(*target._V4, "avx512bf16", vendor="AuthenticAMD")
    assert resolve("auto").name == "znver4"
    this_cpu("neon", "dotprod", arch="aarch64")
    assert resolve("auto").features == ("dotprod", "neon")
    this_cpu(arch="riscv64")
    with pytest.raises(InvalidTarget, match="riscv64"):
        resolve("auto")


def test_auto_gpu_is_this_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpu", lambda: Gpu("NVIDIA H100", (9, 0)))
    assert resolve("cuda") == replace(resolve("cuda-sm90"), host=resolve("cuda").host)
    assert resolve("cuda").arch == "sm_90a"
    monkeypatch.setattr(machine, "gpu", lambda: Gpu("NVIDIA A100", (8, 0)))
    assert (resolve("cuda").arch, resolve("cuda").name) == ("sm_80", "cuda-sm80")
    monkeypatch.setattr(machine, "gpu", lambda: None)
    with pytest.raises(InvalidTarget, match="no CUDA device"):
        resolve("auto-gpu")


def test_target_json_takes_tvm_spelling():
    spec = resolve('{"kind":"llvm","mtriple":"x86_64-linux-gnu","mcpu":"x86-64-v3","mattr":["+avxvnni"],"num-cores":8}')
    assert (spec.mcpu, spec.cores, spec.vector_bits) == ("x86-64-v3", 8, 256)
    assert "avxvnni" in spec.features and "fma" in spec.features
    assert resolve('{"kind":"cuda","arch":"sm_90a"}').arch == "sm_90a"


HOSTILE = {
    "unknown name": "pentium",
    "option text": "llvm -mcpu=znver4",
    "empty": "",
    "not JSON": "{kind: llvm}",
    "an array": "[]",
    "no kind": "{}",
    "unknown kind": '{"kind":"c"}',
    "kind of another type": '{"kind":["llvm"]}',
    "unknown field": '{"kind":"llvm","cl-opt":["-load=/tmp/x.so"]}',
    "unknown field tag": '{"kind":"llvm","tag":"nvidia/h100"}',
    "repeated field": '{"kind":"llvm","kind":"cuda"}',
    "one field twice": '{"kind":"llvm","cores":2,"num-cores":3}',
    "feature injection": '{"kind":"llvm","features":["avx2,+avx512f"]}',
    "feature removed": '{"kind":"llvm","features":["-sse2"]}',
    "unknown feature": '{"kind":"llvm","features":["warp-drive"]}',
    "feature of an ARM": '{"kind":"llvm","features":["neon"]}',
    "feature type": '{"kind":"llvm","features":[1]}',
    "features type": '{"kind":"llvm","features":"+avx2"}',
    "mcpu injection": '{"kind":"llvm","mcpu":"znver4 -mfloat-abi=soft"}',
    "mcpu type": '{"kind":"llvm","mcpu":{}}',
    "triple": '{"kind":"llvm","triple":"x86_64-pc-windows-msvc"}',
    "triple type": '{"kind":"llvm","triple":["x86_64-linux-gnu"]}',
    "cores zero": '{"kind":"llvm","cores":0}',
    "cores bool": '{"kind":"llvm","cores":true}',
    "cores huge": '{"kind":"llvm","cores":1000000000}',
    "cores text": '{"kind":"llvm","cores":"4"}',
    "vector bits": '{"kind":"llvm","mcpu":"x86-64-v2","vector_bits":512}',
    "vector bits float": '{"kind":"llvm","vector_bits":128.0}',
    "name": '{"kind":"llvm","name":"../../etc"}',
    "arch missing": '{"kind":"cuda"}',
    "arch injection": '{"kind":"cuda","arch":"sm_90 --options-file /etc/passwd"}',
    "arch old": '{"kind":"cuda","arch":"sm_20"}',
    "host is cuda": '{"kind":"cuda","arch":"sm_90","host":{"kind":"cuda","arch":"sm_90"}}',
    "host type": '{"kind":"cuda","arch":"sm_90","host":"llvm"}',
    "deep": '{"kind":' + "[" * 6000 + "]" * 6000 + "}",
    "long": '{"kind":"llvm","name":"' + "x" * (1 << 20) + '"}',
    "NaN cores": '{"kind":"llvm","cores":NaN}',
    "newline in a name": '{"kind":"llvm","name":"a\\n"}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_targets_are_refused(text):
    with pytest.raises(InvalidTarget) as caught:
        resolve(text)
    assert len(caught.value.message) < 400


def test_missing_features_names_what_is_missing(this_cpu, monkeypatch):
    this_cpu(*target._V3)
    assert missing_features(resolve("x86-64-v3")) == []
    assert missing_features(resolve("x86-64-v4")) == [
        f"CPU feature {name}" for name in ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
    ]
    assert missing_features(resolve("aarch64")) == ["a CPU of architecture aarch64 (this one is x86_64)"]
    for capability, fits in (((8, 0), True), ((8, 6), True), ((9, 0), True), ((7, 5), False)):
        monkeypatch.setattr(machine, "gpu", lambda c=capability: Gpu("some GPU", c))
        assert (missing_features(resolve("cuda-sm80")) == []) is fits
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert missing_features(resolve("cuda-sm90")) == ["a CUDA device of compute capability 9.0 (there is none)"]


@pytest.mark.parametrize(
    ("capability", "best"),
    [
        *(((7, 5), None), ((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_86"), ((9, 0), "sm_90a")),
        *(((10, 0), "sm_86"), ((12, 0), "sm_120"), ((12, 1), "sm_120")),
    ],
)
def test_the_best_code_for_a_gpu_is_its_own_then_machine_code_then_ptx(capability, best):
    """sm_90a is for 9.0 alone, and is no PTX for what comes after."""
    archs = ["sm_80", "sm_86", "sm_90a", "sm_120"]
    assert machine.best_arch(archs, capability) == best
    assert machine.best_arch(list(reversed(archs)), capability) == best


def test_code_for_a_later_minor_version_is_no_code_for_an_earlier_one():
    assert machine.best_arch(["sm_86"], (8, 0)) is None
    assert machine.best_arch(["sm_90a"], (10, 0)) is None
    assert machine.best_arch(["sm_80", "sm_90"], (9, 0)) == "sm_90"


def test_several_gpus_are_one_target_whatever_their_order(this_cpu, monkeypatch):
    both = resolve("cuda-sm80,cuda-sm90")
    assert both.name == "cuda-sm80,cuda-sm90" and [part.arch for part in both.parts] == ["sm_80", "sm_90a"]
    assert resolve(" cuda-sm90 , cuda-sm80,cuda-sm90") == both
    assert resolve('["cuda-sm90", {"kind": "cuda", "arch": "sm_80"}]') == both
    assert resolve("cuda-sm80,cuda-sm80") == resolve("cuda-sm80")
    assert TargetSpec.from_dict(json.loads(json.dumps(both.to_dict()))) == both
    this_cpu(*target._V3)
    monkeypatch.setattr(machine, "gpu", lambda: None)
    assert missing_features(both) == ["a CUDA device of compute capability 8.0 or 9.0 (there is none)"]
    for capability, fits in (((7, 5), False), ((8, 9), True), ((12, 0), True)):
        monkeypatch.setattr(machine, "gpu", lambda c=capability: Gpu("some GPU", c))
        assert (missing_features(both) == []) is fits


def test_several_cpus_are_one_target_and_the_best_that_runs_is_chosen(this_cpu):
    all_three = resolve("sapphirerapids,x86-64-v3,znver4")
    assert all_three.name == "x86-64-v3,znver4,sapphirerapids"
    assert resolve("znver4,sapphirerapids,x86-64-v3,znver4") == all_three
    assert TargetSpec.from_dict(json.loads(json.dumps(all_three.to_dict()))) == all_three
    names = [part.name for part in all_three.parts]
    for features, best in (
        (target._V3, "x86-64-v3"),
        (target._V4, "x86-64-v3"),
        (target._ZEN4, "znver4"),
        ((*target._V4, *target._SAPPHIRE_RAPIDS), "sapphirerapids"),
    ):
        this_cpu(*features)
        assert machine.best_part(all_three.parts) == names.index(best)
        assert missing_features(all_three) == []
    detected = replace(resolve("x86-64-v3"), name="many", features=(*target._V3, *map(str, range(20))))
    this_cpu(*target._V4, *detected.features)
    both = one_of_many([resolve("x86-64-v4"), detected]).parts
    assert both[machine.best_part(both)].vector_bits == 512
    this_cpu(*target._V2)
    assert machine.best_part(all_three.parts) is None
    assert missing_features(all_three) == missing_features(resolve("x86-64-v3")) != []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x86-64-v3,cuda-sm90", "CPUs and CUDA devices in a list of targets: "),
        ("x86-64-v3,aarch64", "CPUs of different architectures"),
        ('["x86-64-v3", {"kind": "llvm", "name": "x86-64-v3"}]', "two different targets have one name"),
        ('["cuda-sm80", {"kind": "cuda", "arch": "sm_80", "name": "mine"}]', "for one architecture: cuda-sm80, mine"),
        ('["cuda-sm80", {"kind": "cuda", "arch": "sm_90a", "host": {"kind": "llvm"}}]', "different hosts"),
        ("cuda-sm80,", "unknown target ''"),
        ("[]", "1 to 8 different ones, not 0"),
        ("[1]", "names and target objects"),
    ],
)
def test_lists_that_are_no_target_are_refused_by_name(text, said):
    with pytest.raises(InvalidTarget, match=re.escape(said)):
        resolve(text)


def test_what_is_done_for_one_target_is_refused_for_several():
    with pytest.raises(InvalidTarget, match="a tuning is for one target, and cuda-sm80,cuda-sm90 is several"):
        resolve("cuda-sm80,cuda-sm90").single("a tuning")
    with pytest.raises(InvalidTarget, match="is several"):
        to_tvm(resolve("cuda-sm80,cuda-sm90"))


def test_cpuinfo_of_both_architectures():
    vendor, features = parse_cpuinfo("vendor_id\t: AuthenticAMD\nflags\t\t: sse4_1 avx512_bf16 abm wp\n", "x86_64")
    assert (vendor, features) == ("AuthenticAMD", {"sse4.1", "avx512bf16", "lzcnt"})
    _, features = parse_cpuinfo("Features\t: fp asimd asimddp atomics\nCPU implementer\t: 0x41\n", "aarch64")
    assert features == {"neon", "dotprod", "lse"}
    assert parse_cpuinfo("", "x86_64") == ("", frozenset())


@pytest.mark.parametrize("mcpu", [name for name in target._IMPLIED if name != "generic"])
def test_implied_features_are_those_of_llvm(mcpu):
    from tvm.target import Target, codegen

    plain = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu})
    known = machine.known_features("x86_64")
    assert {str(f) for f in codegen.llvm_get_cpu_features(plain)} & known == set(target._IMPLIED[mcpu])


@pytest.mark.parametrize("spec", [*tags(), resolve("auto")], ids=lambda spec: spec.name)
def test_llvm_knows_every_feature(spec):
    from tvm.target import codegen

    host = spec.host or spec
    assert set(host.features) <= {str(f) for f in codegen.llvm_get_cpu_features(to_tvm(host))}

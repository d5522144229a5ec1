"""Records as values: what they refuse, how sets of them merge, and which one a look-up gives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaxc.service.lowering.target import resolve
from relaxc.service.records.files import record_of
from relaxc.service.records.record import Record, RecordSet, RecordTarget, Workload
from relaxc.service.request import TargetSpec
from tests.records.samples import TARGET, record

# Few values of each field of the key, so that keys collide; equal times, so that ties happen.
RECORDS = st.builds(
    record,
    workload=st.sampled_from(["0" * 16, "1" * 16]),
    target=st.sampled_from([TARGET, RecordTarget("cuda", arch="sm_90")]),
    rule=st.sampled_from(["cpu.matmul", "cpu.rows"]),
    version=st.integers(1, 2),
    dtype=st.sampled_from(["float32", "float16"]),
    seconds=st.sampled_from([0.001, 0.002]),
    untuned_s=st.sampled_from([None, 0.002]),
    trials=st.integers(0, 3),
    parameters=st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 4)),
)
SETS = st.lists(RECORDS, max_size=12).map(RecordSet)


@given(SETS, SETS)
@settings(deadline=None)
def test_merge_is_commutative(one: RecordSet, other: RecordSet) -> None:
    assert one | other == other | one
    assert (one | other).to_lines() == (other | one).to_lines()


@given(SETS, SETS, SETS)
@settings(deadline=None)
def test_merge_is_associative(a: RecordSet, b: RecordSet, c: RecordSet) -> None:
    assert (a | b) | c == a | (b | c)
    assert ((a | b) | c).digest == (a | (b | c)).digest


@given(SETS, SETS)
@settings(deadline=None)
def test_merge_is_idempotent_and_loses_no_key(one: RecordSet, other: RecordSet) -> None:
    merged = one | other
    assert merged | one == merged | other == merged | merged == merged
    assert {record.key for record in merged} == {record.key for record in [*one, *other]}
    for kept in merged:
        rivals = [record for record in [*one, *other] if record.key == kept.key]
        assert kept in rivals and kept.seconds == min(record.seconds for record in rivals)


@given(RECORDS)
@settings(deadline=None)
def test_a_record_comes_back_from_its_line(one: Record) -> None:
    again = record_of(json.loads(one.to_json()))
    assert again == one and again.digest == one.digest and hash(again) == hash(one)


def test_the_line_is_what_the_documentation_shows() -> None:
    line = record(target=RecordTarget("llvm", "sapphirerapids", "avx512")).to_json()
    assert '"target":{"kind":"llvm","mcpu":"sapphirerapids","vector":"avx512"}' in line
    assert "trace" not in line and "trace" in record(trace="[1]").to_json()
    assert list(json.loads(line)) == sorted(json.loads(line))


WRONG: dict[str, dict[str, Any]] = {
    "no hash": {"workload": "xyz"},
    "a rule that is a path": {"rule": "../../etc/passwd"},
    "a negative version": {"version": -1},
    "no time": {"seconds": 0.0},
    "an infinite time": {"seconds": float("inf")},
    "not a number": {"untuned_s": float("nan")},
    "a negative share": {"roofline": -0.1},
    "a date of another kind": {"date": "yesterday"},
    "a line break": {"host": "a\nb"},
    "a separator of lines": {"host": "a\u2028b"},
    "negative trials": {"trials": -1},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_a_record_refuses_what_it_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a record cannot have this"):
        record(**fields)


DATA = record().to_dict()
WRONG_JSON = {
    "no object": ([1], "a record is a JSON object"),
    "a field too many": ({**DATA, "colour": "red"}, "unknown fields colour: a newer relaxc wrote it"),
    "a field too few": ({k: v for k, v in DATA.items() if k != "version"}, "it lacks version"),
    "text for a number": ({**DATA, "seconds": "fast"}, "seconds takes float, got str"),
    "a bool for a number": ({**DATA, "version": True}, "version takes int, got bool"),
    "null": ({**DATA, "dtype": None}, "dtype takes str"),
    "parameters that are no integers": ({**DATA, "parameters": {"rows": 1.5}}, "parameters are integers"),
    "a target with a field too many": ({**DATA, "target": {"kind": "llvm", "cores": "2"}}, "target: .*cores"),
    "a target without a CPU": ({**DATA, "target": {"kind": "llvm"}}, "no target of records"),
    "a target that is a path": (
        {**DATA, "target": {"kind": "cuda", "arch": "../.."}},
        "no target of records",
    ),
    "a target of two kinds": (
        {**DATA, "target": {"kind": "cuda", "arch": "sm_90", "mcpu": "znver4"}},
        "no target of records",
    ),
}


@pytest.mark.parametrize(("data", "reason"), WRONG_JSON.values(), ids=WRONG_JSON)
def test_json_that_is_no_record_is_refused_with_a_reason(data: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        record_of(data)


TARGETS = {
    "x86-64-v2": "llvm-x86-64-v2-sse",
    "x86-64-v3": "llvm-x86-64-v3-avx2",
    "x86-64-v4": "llvm-x86-64-v4-avx512",
    "znver4": "llvm-znver4-avx512",
    "aarch64": "llvm-generic-neon",
    "cuda-sm90": "cuda-sm_90a",
    '{"kind": "llvm", "mcpu": "x86-64-v4", "vector_bits": 256}': "llvm-x86-64-v4-avx512-256",
    '{"kind": "llvm", "mcpu": "x86-64-v4", "name": "my-machine"}': "llvm-x86-64-v4-avx512",
    '{"kind": "llvm", "mcpu": "x86-64-v4", "name": "sapphirerapids"}': "llvm-x86-64-v4-avx512",
    '{"kind": "llvm", "mcpu": "x86-64-v4", "name": "sapphirerapids", "features": ["avx512fp16", "avx512bf16"]}': (
        "llvm-sapphirerapids-avx512"
    ),
}


@pytest.mark.parametrize(("text", "name"), TARGETS.items(), ids=range(len(TARGETS)))
def test_the_records_of_a_target(text: str, name: str) -> None:
    """A family counts where the features can be its own; whatever else a target is called does not."""
    assert RecordTarget.of(resolve(text)).name == name


def test_a_target_made_by_hand_has_records_too() -> None:
    assert RecordTarget.of(TargetSpec("my machine", "llvm")).name == "llvm-x86_64-sse"


def test_look_up_compares_the_whole_key() -> None:
    mine = record()
    found = RecordSet([mine])
    asked = Workload(mine.workload, mine.dtype, mine.shapes)
    assert found.lookup(asked, TARGET) == (mine,)
    for other in (
        replace(asked, digest="f" * 16),
        replace(asked, dtype="float16"),
        replace(asked, shapes="128x768 768x3072 128x3073"),
    ):
        assert found.lookup(other, TARGET) == ()
    assert found.lookup(asked, RecordTarget("llvm", "x86-64-v4", "avx2")) == ()


def test_look_up_gives_the_fastest_first_whatever_its_rule() -> None:
    slow, fast, old = record(seconds=3.0), record(rule="cpu.rows", seconds=1.0), record(version=7, seconds=2.0)
    assert RecordSet([slow, fast, old]).lookup(Workload(slow.workload, slow.dtype, slow.shapes), TARGET) == (
        *(fast, old, slow),
    )


def test_a_set_knows_its_records_by_key_and_target() -> None:
    cpu, gpu = record(), record(target=RecordTarget("cuda", arch="sm_90"))
    found = RecordSet([gpu, cpu])
    assert list(found) == [gpu, cpu]  # by the name of their folder
    assert found.get(cpu.key) == cpu and found.get(("f" * 16, *cpu.key[1:])) is None
    assert list(found.for_target(TARGET)) == [cpu] and found.targets == [gpu.target, cpu.target]
    assert cpu in found and replace(cpu, seed=1) not in found
    assert RecordSet([cpu]).digest != RecordSet([replace(cpu, date="2026-11-22")]).digest

"""What pruning takes away: records that no compile uses, and no others."""

from __future__ import annotations

import pytest

from relaxc.schedules import cpu
from relaxc.service.records.files import read
from relaxc.service.records.record import Record, RecordSet, RecordTarget
from relaxc.service.records.sources import SHIPPED
from relaxc.service.records.stale import current_versions, stale
from tests.records.samples import record

VERSIONS = {"llvm": {"cpu.matmul": 2, "cpu.rows": 1}, "cuda": {"cuda.gemv": 1}}
MATMUL = record(version=2)
KEPT: dict[str, list[Record]] = {
    "the current version": [MATMUL],
    "a later version than ours": [record(version=3)],
    "a slower rule for another workload": [MATMUL, record(rule="cpu.rows", seconds=9.0, workload="f" * 16)],
    "another target": [MATMUL, record(rule="cpu.rows", seconds=9.0, target=RecordTarget("llvm", "znver4", "avx512"))],
}


@pytest.mark.parametrize("records", KEPT.values(), ids=KEPT)
def test_what_a_compile_may_use_stays(records: list[Record]) -> None:
    assert stale(RecordSet(records), VERSIONS) == []


def test_rules_that_are_gone_and_older_versions_go() -> None:
    gone, old, gpu = record(rule="cpu.gone"), record(version=1), record(target=RecordTarget("cuda", arch="sm_90"))
    found = stale(RecordSet([MATMUL, gone, old, gpu]), VERSIONS)
    assert dict(found) == {
        gone: "there is no rule cpu.gone",
        old: "cpu.matmul has version 2 now, the record is for 1",
        gpu: "there is no rule cpu.matmul",  # not for this kind of target
    }


def test_records_that_name_their_kernels_as_an_older_relaxc_did_go() -> None:
    [(_, reason)] = stale(RecordSet([record(version=2, operator="")]), VERSIONS)
    assert reason == "an older relaxc named its kernel otherwise: tune again"


def test_a_record_that_a_faster_rule_hides_goes() -> None:
    slower = record(rule="cpu.rows", seconds=9.0)
    [(found, reason)] = stale(RecordSet([MATMUL, slower]), VERSIONS)
    assert found == slower and reason == f"cpu.matmul is faster: record {MATMUL.digest}"
    obsolete = record(version=1, seconds=1e-9)  # faster, and hides nothing: no compile uses it
    assert [record for record, _ in stale(RecordSet([obsolete, MATMUL]), VERSIONS)] == [obsolete]


def test_no_record_that_comes_with_relaxc_is_stale() -> None:
    assert stale(read(SHIPPED), current_versions()) == []


def test_the_versions_are_those_of_the_rules() -> None:
    versions = current_versions()
    assert versions["llvm"] == {"metaschedule": 1, **{rule.name: rule.version for rule in cpu.RULES}}
    assert all(name.startswith("cuda.") for name in versions["cuda"])

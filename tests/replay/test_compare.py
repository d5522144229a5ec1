"""Which differences between two builds are changes of kernels."""

from __future__ import annotations

from typing import Any

from tests.replay.compare import changes

ADD = {"tir": "1", "code": "2", "key": "a float32 8x8", "plan": 'cpu.injective {"version": 3}'}
MUL = {"tir": "3", "code": "4"}


def _built(**kernels: dict[str, str]) -> dict[str, Any]:
    return {"kernels": kernels, "graph": "g", "weights": "w"}


def test_equal_builds_have_no_changes() -> None:
    assert not list(changes(_built(add=ADD, mul=MUL), _built(mul=MUL, add=ADD)))


def test_a_kernel_with_another_name_is_the_same_kernel() -> None:
    assert not list(changes(_built(add=ADD, mul=MUL), _built(add=ADD, mul1=MUL)))


def test_each_part_of_a_kernel_counts() -> None:
    for part in ADD:
        found = list(changes(_built(add=ADD), _built(add={**ADD, part: "other"})))
        assert [name for name, _ in found] == ["add"] and part in found[0][1]


def test_code_that_changed_under_the_same_version_is_said_so() -> None:
    ((_, said),) = changes(_built(add=ADD), _built(add={**ADD, "code": "5"}))
    assert said == "code; the version of cpu.injective is the same"
    ((_, said),) = changes(_built(add=ADD), _built(add={**ADD, "code": "5", "plan": 'cpu.injective {"version": 4}'}))
    assert "is the same" not in said


def test_new_kernels_and_those_that_are_gone_are_changes() -> None:
    found = list(changes(_built(add=ADD), _built(mul=MUL)))
    assert found == [("mul", "is new"), ("add", "is gone")]


def test_graph_and_weights_are_compared() -> None:
    assert list(changes(_built(), {**_built(), "graph": "h", "weights": "v"})) == [
        ("graph", "differs"),
        ("weights", "differs"),
    ]


def test_refusals_are_compared_by_what_they_say() -> None:
    refused, died = {"refused": "UnsupportedModel: no"}, {"died": "with status -11"}
    assert not list(changes(refused, refused))
    assert list(changes(refused, _built())) == [("compile", "UnsupportedModel: no → built")]
    assert list(changes(_built(), died)) == [("compile", "built → died with status -11")]

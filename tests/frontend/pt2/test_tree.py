"""Names out of tree specs, for containers whose classes are not here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.pt2.tree import input_names, output_names

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def _node(kind: str, context: Any, *children: Any) -> dict[str, Any]:
    return {"type": kind, "context": json.dumps(context), "children_spec": list(children)}


def _tuple(*children: Any) -> dict[str, Any]:
    return _node("builtins.tuple", None, *children)


def _spec(node: Any) -> str:
    return json.dumps([1, node])


@pytest.mark.parametrize(
    ("node", "names"),
    [
        (LEAF, ["output"]),
        (_tuple(LEAF), ["output.0"]),
        (_tuple(LEAF, _tuple(LEAF, LEAF)), ["output.0", "output.1.0", "output.1.1"]),
        (_node("builtins.list", None, LEAF, LEAF), ["output.0", "output.1"]),
        (_node("builtins.dict", ["logits", "mask"], LEAF, LEAF), ["logits", "mask"]),
        (_node("builtins.dict", [0, 1], LEAF, LEAF), ["output.0", "output.1"]),
        (
            _node("collections.defaultdict", {"default_factory_name": "list", "dict_context": ["a"]}, LEAF),
            ["a"],
        ),
        (
            _node("transformers.BaseModelOutput", ["last", "past"], LEAF, _tuple(_tuple(LEAF, LEAF))),
            ["last", "past.0.0", "past.0.1"],
        ),
        (_node("my.Dataclass", [["x", "y"], ["none"]], LEAF, LEAF), ["x", "y"]),
        (_node("collections.namedtuple", "my.Point", LEAF, LEAF), ["x", "y"]),
        (_node("my.Unknown", {"whatever": 1}, LEAF, LEAF), ["output.0", "output.1"]),
        (_node("builtins.dict", ["a.b", "a"], LEAF, _node("builtins.dict", ["b"], LEAF)), ["a.b", "a.b_1"]),
    ],
)
def test_output_names(node: Any, names: list[str]) -> None:
    assert output_names(_spec(node), {"my.Point": ["x", "y"]}) == names


def test_input_names() -> None:
    args = _tuple(LEAF, _node("builtins.dict", ["k"], LEAF))
    kwargs = _node("builtins.dict", ["mask", "cache"], LEAF, _tuple(LEAF, LEAF))
    spec = _spec(_tuple(args, kwargs))
    assert input_names(spec, ["ids", "extra"]) == ["ids", "extra.k", "mask", "cache.0", "cache.1"]
    assert input_names(spec, None) == ["arg0", "arg1.k", "mask", "cache.0", "cache.1"]


@pytest.mark.parametrize(
    "spec",
    ["", "[]", "[1]", "7", "[2, {}]", '[1, {"type": null}]', _spec({**LEAF, "children_spec": [3]}), "[" * 9999],
)
def test_damaged_specs(spec: str) -> None:
    with pytest.raises(ModelMalformed):
        output_names(spec, {})


def test_a_spec_that_is_too_deep() -> None:
    node = LEAF
    for _ in range(100):
        node = _tuple(node)
    with pytest.raises(ModelMalformed):
        output_names(_spec(node), {})

"""A `.pt2` never runs what it carries: payloads in every place that torch.export.load would run, and none goes off."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaxc.service.errors import ModelTooLarge, ModelUnsafe, UnsupportedModel
from relaxc.service.frontend.pt2 import check as pt2_check
from relaxc.service.frontend.pt2 import frontend as exported_program
from relaxc.service.frontend.pt2.archive import Archive
from tests.malformed_pt2 import archive, edited, payload, write

_MODEL = "models/model.json"
_TOUCH = "__import__('pathlib').Path('pwned').touch()"


def _graph(document: Any) -> Any:
    return document["graph_module"]["graph"]


def _signature(document: Any) -> Any:
    return document["graph_module"]["module_call_graph"][0]["signature"]


def _enum_in_tree(document: Any) -> None:
    """torch imports the module that an enum's `fqn` names."""
    enum = json.dumps({"__enum__": True, "fqn": "pwned_module:X", "name": "Y"})
    leaf = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.tuple", "context": enum, "children_spec": [leaf]}
    _signature(document)["out_spec"] = json.dumps([1, spec])


def _guards(document: Any) -> None:
    document["guards_code"] = [_TOUCH, f"(lambda: {_TOUCH})()"]


def _metadata(document: Any) -> None:
    for node in _graph(document)["nodes"]:
        node["metadata"] = {
            "stack_trace": f'File "x", line 1, in f\n{_TOUCH}',
            "source_fn_stack": "linear,torch.utils.cpp_extension.load",
            "nn_module_stack": f"a,b,{_TOUCH}",
            "custom": "{}",
            "from_node": json.dumps([{"name": "x", "target": _TOUCH, "pass_name": "", "action": [], "graph_id": 0}]),
        }
    document["graph_module"]["metadata"] = {"custom": json.dumps({"x": _TOUCH})}


def _argument_names(document: Any) -> None:
    _signature(document)["forward_arg_names"] = [f"x={_TOUCH}"]


def _fields(document: Any) -> None:
    document["graph_module"]["treespec_namedtuple_fields"] = {_TOUCH: {"field_names": [_TOUCH]}}


@pytest.mark.parametrize("edit", [_enum_in_tree, _metadata, _argument_names, _fields])
def test_text_that_torch_would_run_is_not(
    edit: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These do not stop a program from loading: what is in them is dropped, or only read."""
    (tmp_path / "pwned_module.py").write_text("open('pwned', 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = edited(tmp_path, _MODEL, edit)
    model = exported_program.load(path, shapes={})
    run = exported_program.reference(path, threads=1, shapes={})
    run({model.signature.inputs[0].name: np.zeros((2, 8), "float32")})
    assert not (tmp_path / "pwned").exists()
    assert "pwned_module" not in sys.modules


def test_guards_that_torch_would_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = edited(tmp_path, _MODEL, _guards)
    for use in (
        lambda: exported_program.load(path, shapes={}),
        lambda: exported_program.inspect(path),
        lambda: exported_program.reference(path, threads=1, shapes={}),
    ):
        with pytest.raises(UnsupportedModel, match="no call can be held to"):
            use()
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("entry", ["data/sample_inputs/model.pt", "extra/notes", "data/constants/custom_obj_7"])
def test_entries_that_are_not_needed_are_not_read(entry: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt2", {**archive(), entry: payload(tmp_path)})
    exported_program.load(path, shapes={})
    exported_program.reference(path, threads=1, shapes={})
    assert not (tmp_path / "pwned").exists()


def test_the_payload_would_go_off(tmp_path: Path) -> None:
    """The other tests here prove nothing unless torch.load runs what they hide."""
    import pickle

    pickle.loads(payload(tmp_path))  # noqa: S301
    assert (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s0', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s43', positive=True, integer=True)), Integer(-1))",
        "FloorDiv(Symbol('s0'), Integer(2))",
        "Pow(Symbol('s0'), Integer(2))",
        "Max(Integer(1), Symbol('s0'))",
        "Rational(1, 2)",
    ],
)
def test_expressions_that_torch_writes(text: str) -> None:
    pt2_check._check_expression(text)


@pytest.mark.parametrize(
    "text",
    [
        _TOUCH,
        "s0",
        "Symbol(__import__('os').name)",
        "Symbol('s0').name",
        "Symbol('__import__(1)')",
        "[Symbol('s0')]",
        "Integer(2) ** Integer(9999)",
        "(lambda: 1)()",
        "Add(*[Integer(1)])",
        "Integer(1, evil=print)",
        "LShift(Integer(1), Integer(99999999999))",
        "Pow(Integer(2), Integer(999999999))",
        "Symbol('s0', positive=print('x'))",
        "f'{1}'",
        "Integer(" * 90 + "1" + ")" * 90,
        "Add(" + "Integer(1), " * 500 + ")",
        "(" * 5000,
        "",
    ],
)
def test_expressions_that_are_refused(text: str) -> None:
    with pytest.raises(ModelUnsafe):
        pt2_check._check_expression(text)


@pytest.mark.parametrize("name", ['a"); x("', "a\\", "a\nb", "", "a'b", "{x}"])
def test_weight_names_that_could_end_a_string(name: str) -> None:
    with pytest.raises(ModelUnsafe):
        pt2_check.check_weight_name(name)


def test_unpacked_size_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaxc.service import config

    monkeypatch.setenv("RELAXC_MAX_UNPACKED_BYTES", "1000")
    config.settings.cache_clear()
    try:
        with pytest.raises(ModelTooLarge, match="RELAXC_MAX_UNPACKED_BYTES"):
            Archive(write(tmp_path / "m.pt2", archive()))
    finally:
        config.settings.cache_clear()


def test_number_of_nodes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaxc.service import config

    monkeypatch.setenv("RELAXC_MAX_GRAPH_NODES", "2")
    config.settings.cache_clear()
    try:
        with pytest.raises(ModelTooLarge, match="RELAXC_MAX_GRAPH_NODES"):
            exported_program.load(write(tmp_path / "m.pt2", archive()), shapes={})
    finally:
        config.settings.cache_clear()


def test_compressed_and_unaligned_archives_load(tmp_path: Path) -> None:
    """A zip that another program packed again is as good."""
    import zipfile

    exported_program.load(
        write(tmp_path / "m.pt2", archive(), root="other name", compress=zipfile.ZIP_DEFLATED), shapes={}
    )

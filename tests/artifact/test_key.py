"""The key: every entry counts, nothing else does, and no framework is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaxc.service import config
from relaxc.service.artifact import key as key_module
from relaxc.service.artifact.key import Key, digest_of_files, key_for
from relaxc.service.errors import DigestMismatch, InvalidOption, InvalidRecords, PluginError, RelaxcError, ToolMissing
from relaxc.service.input_files import check_unchanged
from relaxc.service.lowering.target import resolve
from relaxc.service.machine import version_of
from relaxc.service.records import sources
from relaxc.service.records.files import append
from relaxc.service.records.record import RecordTarget
from relaxc.service.request import (
    Calibration,
    CompileOptions,
    CompileRequest,
    ModelFormat,
    ModelRef,
    Precision,
    TargetSpec,
)
from tests.records.samples import record
from tests.test_layers import MODULES, imports

REQUEST = CompileRequest(
    ModelRef(ModelFormat.ONNX, "0" * 64, 10, Path("model.onnx")),
    TargetSpec("x86-64-v3", "llvm", features=("avx2",), vector_bits=256),
    CompileOptions(),
)


def changed(request: CompileRequest) -> set[str]:
    """The entries of this request's key that differ from those of REQUEST."""
    return set(key_for(REQUEST).differences(key_for(request)))


def test_equal_requests_have_equal_keys_wherever_the_model_lies() -> None:
    elsewhere = replace(REQUEST, model=replace(REQUEST.model, path=Path("/elsewhere/m.onnx")))
    assert key_for(elsewhere) == key_for(REQUEST)
    assert key_for(elsewhere).digest == key_for(REQUEST).digest


REQUESTS: list[tuple[dict[str, Any], set[str]]] = [
    ({"model": replace(REQUEST.model, digest="1" * 64)}, {"model.digest"}),
    ({"options": CompileOptions(opt_level=3)}, {"option.opt_level"}),
    ({"options": CompileOptions(precision=Precision.BF16)}, {"option.precision"}),
    ({"options": CompileOptions(verify=False)}, {"option.verify"}),
    ({"options": CompileOptions(seed=1)}, {"option.seed"}),
    ({"options": CompileOptions(require_tuned="hot")}, {"option.require_tuned"}),
    ({"options": CompileOptions(small_weights=True)}, {"option.small_weights"}),
    ({"options": CompileOptions(state=())}, {"option.state"}),
    ({"options": CompileOptions(shapes=(("x", (1, 3)),))}, {"option.shapes.x"}),
    ({"target": replace(REQUEST.target, cores=2)}, {"target.cores"}),
    ({"target": replace(REQUEST.target, features=("avx2", "fma"))}, {"target.features"}),
    ({"target": replace(REQUEST.target, mcpu="haswell")}, {"target.mcpu"}),
    ({"target": replace(REQUEST.target, features=("neon",))}, {"target.features", "machine.lacks"}),
]


@pytest.mark.parametrize(
    ("fields", "entries"), REQUESTS, ids=lambda v: "-".join(sorted(v)) if isinstance(v, set) else ""
)
def test_a_change_of_the_request_changes_its_entry(fields: dict[str, Any], entries: set[str]) -> None:
    other = replace(REQUEST, **fields)
    assert changed(other) == entries
    assert key_for(other).digest != key_for(REQUEST).digest


def test_the_format_brings_its_own_libraries() -> None:
    pt2 = replace(REQUEST, model=replace(REQUEST.model, format=ModelFormat.PT2))
    assert changed(pt2) == {"model.format", "version.torch", "version.onnx", "version.onnxruntime"}


def test_a_cuda_target_brings_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module, "_tool_version", lambda program, *flags: f"{program} 1")
    cuda = TargetSpec("cuda-sm90", "cuda", arch="sm_90", host=REQUEST.target)
    assert {"tool.nvcc", "target.arch", "target.host.features"} <= changed(replace(REQUEST, target=cuda))


def test_several_targets_count_as_one_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module, "_tool_version", lambda program, *flags: f"{program} 1")
    both, other = (
        key_for(replace(REQUEST, target=resolve(text))) for text in ("cuda-sm80,cuda-sm90", "cuda-sm90,cuda-sm80")
    )
    alone = key_for(replace(REQUEST, target=resolve("cuda-sm90")))
    assert both == other
    assert {"target.name", "target.arch", "target.parts"} <= set(both.differences(alone))
    assert "target.parts" not in dict(alone.entries)


def test_a_plugin_counts_by_its_contents_and_not_by_its_path(tmp_path: Path) -> None:
    for name, text in (("a.py", "x = 1"), ("b.py", "x = 1"), ("c.py", "x = 2")):
        (tmp_path / name).write_text(text)
    a, b, c = (
        key_for(replace(REQUEST, options=CompileOptions(plugins=(str(tmp_path / name),))))
        for name in ("a.py", "b.py", "c.py")
    )
    assert a == b
    assert set(a.differences(c)) == {"plugin.0"}
    with pytest.raises(PluginError):
        key_for(replace(REQUEST, options=CompileOptions(plugins=(str(tmp_path / "none.py"),))))


@pytest.mark.timeout(60)  # where it opens a pipe, it waits for ever
@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("what", ["pipe", "/dev/zero"])
def test_what_is_no_regular_file_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, cuda: bool
) -> None:
    monkeypatch.setattr(key_module, "_tool_version", lambda program, *flags: f"{program} 1")
    place = str(tmp_path / what)
    if what == "pipe":
        os.mkfifo(place)
    target = TargetSpec("cuda-sm90", "cuda", arch="sm_90", host=REQUEST.target) if cuda else REQUEST.target
    given: list[tuple[CompileOptions, type[RelaxcError]]] = [
        (CompileOptions(plugins=(place,)), PluginError),
        (CompileOptions(records=(place,)), InvalidRecords),
        (CompileOptions(precision=Precision.INT8, calibration=Calibration(place)), InvalidOption),
    ]
    for options, error in given:
        with pytest.raises(error, match=f"{what}.*no regular file"):
            key_for(replace(REQUEST, target=target, options=options))


def test_a_triton_kernel_counts_with_its_plugin_on_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the text of its file and by the Triton that compiles it; a CPU has nothing of it."""
    monkeypatch.setattr(key_module, "_tool_version", lambda program, *flags: f"{program} 1")
    versions = {"triton": "3.7.1"}
    monkeypatch.setattr(key_module, "version_of", versions.get)
    plugin, kernels = tmp_path / "mine.py", tmp_path / "kernels.py"
    plugin.write_text("'kernels.py:f'")
    kernels.write_text("x = 1")
    asked = replace(REQUEST, options=CompileOptions(plugins=(str(plugin),)))
    host = key_for(asked)
    cuda = replace(asked, target=TargetSpec("cuda-sm90", "cuda", arch="sm_90", host=REQUEST.target))
    before = key_for(cuda)
    kernels.write_text("x = 2")
    assert set(before.differences(key_for(cuda))) == {"plugin.0.kernels"} and key_for(asked) == host
    kernels.write_text("x = 1")
    versions["triton"] = "3.8.0"
    assert set(before.differences(key_for(cuda))) == {"version.triton"} and key_for(asked) == host
    assert {file for file, _ in before.seen} == {plugin, kernels} and [file for file, _ in host.seen] == [plugin]
    check_unchanged(host.seen)
    with pytest.raises(DigestMismatch, match=r"kernels\.py changed"):
        check_unchanged(before.seen)
    plugin.write_text("0")
    assert set(before.differences(key_for(cuda))) == {"plugin.0", "plugin.0.kernels", "version.triton"}


def test_a_change_of_a_library_version_changes_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_for(REQUEST)
    for name in ("relaxc", "apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime"):
        monkeypatch.setattr(key_module, "version_of", lambda n, name=name: "9.9" if n == name else version_of(n))
        assert set(before.differences(key_for(REQUEST))) == {f"version.{name}"}


def test_a_change_of_the_compiler_changes_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_for(REQUEST)
    monkeypatch.setattr(key_module, "_tool_version", lambda program, *flags: "13.0.0 x86_64")
    assert set(before.differences(key_for(REQUEST))) == {"tool.cxx"}


def test_settings_count_when_they_affect_the_artifact_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_for(REQUEST)
    monkeypatch.setattr(key_module, "settings", lambda: config.Settings(queue_max=3, cache_max_bytes=7))
    assert key_for(REQUEST) == before
    monkeypatch.setattr(key_module, "settings", lambda: config.Settings(embed_weights_max_bytes=5))
    assert set(before.differences(key_for(REQUEST))) == {"setting.embed_weights_max_bytes"}


def test_every_part_of_our_code_is_an_entry_and_a_change_in_it_changes_that_entry_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, places in key_module._SOURCES.items():
        assert digest_of_files(key_module._ROOT, places) != digest_of_files(tmp_path, places), name
        for place in places:
            path = tmp_path / place if place.endswith(".py") else tmp_path / place / "a.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1")
    monkeypatch.setattr(key_module, "_ROOT", tmp_path)
    monkeypatch.setattr(key_module, "_source_digests", key_module._source_digests.__wrapped__)
    before = key_for(REQUEST)
    for path in list(tmp_path.rglob("*.py")):
        path.write_text("x = 2")
        entries = {n for n, places in key_module._SOURCES.items() for p in places if path.is_relative_to(tmp_path / p)}
        assert set(before.differences(key_for(REQUEST))) == entries, path
        path.write_text("x = 1")


def test_all_that_a_compile_imports_is_in_an_entry() -> None:
    waiting, imported = ["relaxc.service.compiler", "relaxc.service.tuner"], set[str]()
    while waiting:
        module = waiting.pop()
        if module in MODULES and module not in {*imported, "relaxc"}:  # which imports the names that are asked of it
            imported.add(module)
            waiting += [module.rpartition(".")[0], *(found.imported for found in imports(module))]
    paths = {MODULES[module].relative_to(key_module._ROOT) for module in imported}
    places = [place for places in key_module._SOURCES.values() for place in places]
    left_out = {path for path in paths if not any(path.is_relative_to(place) for place in places)}
    assert len(paths) > 300
    assert left_out == {Path("service/tuner.py")}


def test_records_count_by_what_they_say_of_this_target_and_not_by_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = RecordTarget.of(REQUEST.target)
    monkeypatch.setattr(sources, "SHIPPED", tmp_path / "shipped")
    before = key_for(REQUEST)
    append(tmp_path / "shipped", [record(target=RecordTarget("cuda", arch="sm_90"))])
    assert key_for(REQUEST) == before
    append(tmp_path / "a", [record(target=mine)])
    append(tmp_path / "b", [record(target=mine)])
    a, b = (replace(REQUEST, options=CompileOptions(records=(str(tmp_path / name),))) for name in "ab")
    assert key_for(a) == key_for(b)
    assert changed(a) == {"tuning.records"}
    append(tmp_path / "b", [record(target=mine, seconds=0.001)])
    assert set(key_for(a).differences(key_for(b))) == {"tuning.records"}
    append(tmp_path / "shipped", [record(target=mine)])
    assert set(before.differences(key_for(REQUEST))) == {"tuning.records"}
    assert key_for(replace(REQUEST, options=CompileOptions(default_records=False))) == before


def test_records_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecords, match="nowhere"):
        key_for(replace(REQUEST, options=CompileOptions(records=(str(tmp_path / "nowhere"),))))


def test_names_and_contents_count_and_compiled_python_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "a.py").write_text("1")
    one = digest_of_files(tmp_path, ["p"])
    (folder / "a.pyc").write_text("noise")
    assert digest_of_files(tmp_path, ["p"]) == one
    (folder / "a.py").rename(folder / "b.py")
    assert digest_of_files(tmp_path, ["p"]) != one


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_module, "settings", lambda: config.Settings(cxx="no-such-compiler"))
    with pytest.raises(ToolMissing, match="no-such-compiler"):
        key_for(REQUEST)


def test_the_digest_is_of_the_entries_in_any_order() -> None:
    assert Key.of({"a": "1", "b": "2"}).digest == Key.of({"b": "2", "a": "1"}).digest
    assert Key.of({"a": "1"}).digest != Key.of({"a": "2"}).digest
    assert Key.of({"a": "1"}).differences(Key.of({"b": "1"})) == {"a": ("1", None), "b": (None, "1")}


def test_a_key_imports_no_framework() -> None:
    code = """
import sys
from tests.artifact.test_key import REQUEST
for name in ("tvm", "torch", "onnx", "onnxruntime"):
    sys.modules.pop(name, None)
from relaxc.service.artifact.key import key_for
from relaxc.service.machine import version_of
key_for(REQUEST)
sys.exit(bool({"tvm", "torch", "onnx", "onnxruntime"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

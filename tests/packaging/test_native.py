"""The package's library beside the Python runtime: the same numbers and refusals, the same facts of the machine."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from relaxc.service import machine, processor, tvm_libraries
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.artifact.packing import Built, pack_parts
from relaxc.service.config import settings
from relaxc.service.errors import ArtifactCorrupt, RelaxcError
from relaxc.service.request import TargetSpec
from relaxc.service.runtime import load
from relaxc.service.signature import Condition, DimBounds, Signature, TensorSpec
from tests.packaging.native import Library, NativeError, Session
from tests.runtime.conftest import Linears, aligned, linear_signature, manifest_of
from tests.runtime.test_library import HOST, two_parts
from tests.runtime.test_threads import in_new_thread
from tests.waiting import PATIENCE_S

Make = Callable[..., Path]
NATIVE = Path(__file__).parents[2] / "service/packaging/native"


@pytest.fixture(scope="module")
def session(library: Library, package: Path) -> Session:
    return library.open(package / "model.so", threads=1)


def some(batch: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(batch)
    return {"x": rng.standard_normal((batch, 64)).astype(np.float32), "ids": np.arange(batch)}


def error_of(call: Callable[[], Any]) -> tuple[str, str]:
    """Code and message of what a call raises, here or in the library."""
    try:
        call()
    except NativeError as error:
        return error.code, error.message
    except RelaxcError as error:
        return error.code, error.message
    raise AssertionError("it was taken")


@pytest.mark.parametrize("batch", [1, 3, 700])
def test_numbers_are_pythons_to_the_bit(session: Session, package: Path, batch: int) -> None:
    inputs = some(batch)
    want = load(package / "model.so", threads=1)(inputs)
    for given in (inputs, list(inputs.values()), {name: aligned(a, shift=8) for name, a in inputs.items()}):
        found = session(given)
        assert list(found) == list(want)
        for name, array in want.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


def test_the_signature_is_the_manifests(session: Session, package: Path) -> None:
    signature = Manifest.read(package / "model.so").signature
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        assert session.specs(kind) == [(spec.name, spec.dtype, [str(dim) for dim in spec.shape]) for spec in specs]
    assert (
        json.loads(session.library.c.relaxc_manifest(session.handle)) == Manifest.read(package / "model.so").to_dict()
    )
    assert session.library.c.relaxc_threads(session.handle) == 1
    assert session.library.c.relaxc_abi() == 1
    assert session.library.c.relaxc_tvm_version().decode() == tvm_libraries.runtime_version()


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros((3, 64), np.float32)},
        {},
        {**some(), "y": np.zeros(1)},
        {**some(), "ids": np.zeros(3, np.int32)},
        {**some(), "ids": np.zeros(4, np.int64)},
        {**some(), "ids": np.zeros((3, 1), np.int64)},
        {**some(), "x": np.zeros((3, 65), np.float32)},
        {**some(), "x": np.zeros((3, 64), ml_dtypes.bfloat16)},
        some(0),
        some(1025),
    ],
    ids=range(10),
)
def test_inputs_are_refused_as_python_refuses_them(session: Session, package: Path, inputs: dict[str, Any]) -> None:
    python = load(package / "model.so", threads=1)
    assert error_of(lambda: session(inputs)) == error_of(lambda: python(inputs))
    assert session(some())["y"].shape == (3, 64)


def test_an_input_that_the_export_fixed_is_left_out(session: Session) -> None:
    assert error_of(lambda: session({**some(), "use_cache": np.array(False)}))[0] == "input-name"
    twice = {**some(), "x\0": np.zeros((3, 64), np.float32)}  # ends at the NUL, as C has it
    assert error_of(lambda: session(twice)) == ("input-name", "input 'x' was given twice")


@pytest.mark.parametrize("path", ["", "\0", "nowhere.so", "/", "x" * 5000, "/dev/full"])
def test_paths_that_are_no_artifact_are_refused(library: Library, path: str) -> None:
    assert error_of(lambda: library.open(Path(path)))[0] in ("artifact-not-found", "artifact-corrupt")


def test_no_bit_changes_unnoticed(library: Library, package: Path, tmp_path: Path) -> None:
    chance, whole, path = random.Random(3), (package / "model.so").read_bytes(), tmp_path / "model.so"
    for place in [chance.randrange(len(whole)) for _ in range(60)]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :])
        assert error_of(lambda: library.open(path))[0] == "artifact-corrupt", place
    path.write_bytes(whole)
    library.open(path)
    subprocess.run(["strip", path], check=True)
    library.open(path)


def expressed(shape: tuple[int | str, ...], bounds: dict[str, DimBounds]) -> Signature:
    """Linear's signature with another first input."""
    old = linear_signature()
    return replace(old, inputs=(TensorSpec("x", "float32", shape), old.inputs[1]), dims=tuple(bounds.items()))


BATCH = DimBounds(1, 1024)


@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        (("2*half + 1", 64), {"half": DimBounds(0, 500), "batch": BATCH}),
        (("(n + 3) // 4 * 1 + min(n, 0) + max(0, n % 1)", 64), {"n": DimBounds(0), "batch": BATCH}),
        (("-(-n)", "64 + batch - batch"), {"n": BATCH, "batch": BATCH}),
        (("batch // (batch - batch)", 64), {"batch": BATCH}),
        (("a*b", "a + b"), {"a": BATCH, "b": BATCH, "batch": BATCH}),
        (("4611686018427387903 * n", 64), {"n": BATCH, "batch": BATCH}),
        (("n", "n"), {"n": DimBounds(64, 64), "batch": BATCH}),
        (("n*n", 64), {"n": BATCH, "batch": BATCH}),
    ],
    ids=range(8),
)
def test_symbolic_dims_are_bound_as_python_binds_them(
    library: Library, artifact: Make, shape: Any, bounds: dict[str, DimBounds]
) -> None:
    path = artifact(signature=expressed(shape, bounds))
    native, python = library.open(path, threads=1), load(path, threads=1)
    for batch in (1, 3, 4, 64, 9):
        found = [_numbers_or_error(each, some(batch)) for each in (native, python)]
        if "undefined" not in str(found[0]):
            assert found[0] == found[1], batch
        else:
            assert found[0][0] == found[1][0] == "input-shape"


@pytest.mark.parametrize(
    "texts",
    [
        ("batch % 2 == 0",), ("batch >= 3",), ("9 >= batch", "batch != 4"), ("batch > 2", "(batch + 1) // 2 < 5"),
        ("max(0, 1 - batch) <= 0 - 1",), ("-(batch) >= -4",), ("batch // (batch - 3) >= 0",), ("other == 1",),
    ],
)  # fmt: skip
def test_calls_that_no_operator_is_defined_for_are_refused_as_python_refuses_them(
    library: Library, artifact: Make, texts: tuple[str, ...]
) -> None:
    conditions = tuple(Condition(text, f"node 'a' (Op) needs {text}") for text in texts)
    path = artifact(signature=replace(linear_signature(), conditions=conditions))
    native, python = library.open(path, threads=1), load(path, threads=1)
    found = [[_numbers_or_error(each, some(batch)) for batch in (1, 2, 3, 4, 9, 10)] for each in (native, python)]
    assert found[0] == found[1] and any(each[0] == "input-shape" for each in found[0])


@pytest.mark.parametrize(
    "text", ["batch", "batch = 1", "batch == 1 == 1", "batch === 1", "batch >= ", "a() > 1", "1 =! 2"]
)
def test_conditions_that_are_none_are_damage(library: Library, artifact: Make, text: str) -> None:
    path = artifact(signature=replace(linear_signature(), conditions=(Condition(text, "why"),)))
    assert error_of(lambda: library.open(path))[0] == "artifact-corrupt"
    with pytest.raises(ArtifactCorrupt):
        load(path)


def _numbers_or_error(call: Any, inputs: Any) -> Any:
    try:
        return call(inputs)["y"].tobytes()
    except (NativeError, RelaxcError) as error:
        return error.code, error.message


@pytest.mark.parametrize(
    "dim", ["1 +", "a**2", "a/2", "f(a, 1)", "min(a)", "a.b", "()", "1_0", "((((", "99999999999999999999", "a b"]
)
def test_dims_that_are_no_expressions_are_damage(library: Library, artifact: Make, dim: str) -> None:
    path = artifact(signature=expressed((dim, 64), {"a": BATCH, "batch": BATCH}))
    assert error_of(lambda: library.open(path))[0] == "artifact-corrupt"


@pytest.mark.parametrize(
    "target",
    [
        TargetSpec("other", "llvm", triple="riscv64-linux-gnu"),
        TargetSpec("newer", "llvm", triple=f"{machine.cpu().arch}-linux-gnu", features=("amx-fp16", "avx10.2", "sve2")),
        TargetSpec(
            "cuda-sm90", "cuda", arch="sm_90", host=TargetSpec("h", "llvm", triple=f"{machine.cpu().arch}-linux-gnu")
        ),
    ],
    ids=lambda target: target.name,
)
def test_another_machine_is_refused_as_python_refuses_it(library: Library, artifact: Make, target: TargetSpec) -> None:
    path = artifact(target=target)
    assert error_of(lambda: library.open(path)) == error_of(lambda: load(path))


def test_another_runtime_is_refused_as_python_refuses_it(library: Library, artifact: Make, package: Path) -> None:
    requires = replace(Manifest.read(package / "model.so").requires, runtime="0.1")
    path = artifact(requires=requires)
    assert error_of(lambda: library.open(path)) == error_of(lambda: load(path))


def test_options_are_checked(library: Library, package: Path) -> None:
    path = package / "model.so"
    for options in (
        {"threads": -1},
        {"threads": 10**6},
        {"device": b"gpu"},
        {"device": b"cuda:"},
        {"device": b"cuda:99999"},
    ):
        assert error_of(lambda options=options: library.open(path, **options))[0] == "invalid-option", options
    assert error_of(lambda: library.open(path, size=8))[0] == "invalid-option"
    assert error_of(lambda: library.open(path, sha256=b"0" * 64))[0] == "artifact-corrupt"


def test_null_and_numbers_out_of_range_are_refused(library: Library, session: Session) -> None:
    c = library.c
    assert [c.relaxc_open(None, None, None), c.relaxc_run(None, None, ctypes.c_size_t(0), None)] == [8, 8]
    assert c.relaxc_run(session.handle, None, ctypes.c_size_t(3), ctypes.byref(ctypes.c_void_p())) == 8
    for call in (c.relaxc_input, c.relaxc_output, c.relaxc_result_tensor):
        assert call(session.handle if call is not c.relaxc_result_tensor else None, ctypes.c_size_t(99), None) == 8
    c.relaxc_close(None)
    c.relaxc_result_free(None)
    assert c.relaxc_input_count(None) == c.relaxc_result_count(None) == 0


def test_calls_from_many_threads_are_right(session: Session, package: Path) -> None:
    wants = {batch: load(package / "model.so", threads=1)(some(batch))["y"].tobytes() for batch in (2, 9, 30)}
    wrong: list[int] = []

    def call(batch: int) -> None:
        for _ in range(20):
            if session(some(batch))["y"].tobytes() != wants[batch]:
                wrong.append(batch)

    threads = [threading.Thread(target=call, args=(batch,)) for batch in wants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def native_threads() -> int:
    """The threads of this process, TVM's too."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_that_come_and_go_leave_no_pools_behind(session: Session) -> None:
    want = session(some())["y"]

    def call() -> None:
        np.testing.assert_array_equal(session(some())["y"], want)

    def many(count: int) -> None:
        for _ in range(count):
            in_new_thread(call)

    most = 64 // machine.cpu().cores + 2
    many(most)
    before = native_threads()
    many(3 * most)
    assert native_threads() <= before + machine.cpu().cores


def test_a_forked_process_calls_what_was_called_before(session: Session) -> None:
    want = session(some())["y"]
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE_S))  # it would wait for ever for workers that it does not have
        try:
            for _ in range(3):
                np.testing.assert_array_equal(session(some())["y"], want)
            in_new_thread(lambda: np.testing.assert_array_equal(session(some())["y"], want))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_in_the_place_of_one_that_is_open_has_its_own_code(
    library: Library, artifact: Make, twice: Path, tmp_path: Path
) -> None:
    path, sessions, once = tmp_path / "model.so", [], artifact()
    for source in (once, twice, once, twice):
        shutil.copy(source, tmp_path / "new")
        (tmp_path / "new").replace(path)
        sessions.append(library.open(path, threads=1))
    found = [session(some())["y"] for session in sessions]
    np.testing.assert_array_equal(found[1], 2 * found[0])
    np.testing.assert_array_equal(found[2:], found[:2])


def test_a_part_that_is_opened_again_takes_no_more_of_the_process(
    library: Library, linear: Linears, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAXC_PART", "second")
    settings.cache_clear()
    two_parts(linear, tmp_path / "two.so")
    want = load(tmp_path / "two.so", threads=1)(some())["y"]
    files = []
    for _ in range(4):
        np.testing.assert_array_equal(library.open(tmp_path / "two.so", threads=1)(some())["y"], want)
        files.append(len(list(Path("/proc/self/fd").iterdir())))
    assert files[0] == files[-1]
    monkeypatch.undo()
    settings.cache_clear()


def test_of_several_cpus_the_best_that_runs_here_is_opened(library: Library, linear: Linears, tmp_path: Path) -> None:
    """Python and C++ take the same: of those whose features are here the one with the most."""
    names = sorted(machine.cpu().features)
    few, many, strange = (replace(HOST, name=n, features=f) for n, f in (
        ("few", ()), ("many", tuple(names[:2])), ("strange", (*names[:3], "amx-transpose")),
    ))  # fmt: skip
    manifest = manifest_of(linear.signature, target=few)
    factors = {"few": 1, "many": 2, "strange": 3}
    parts = [
        Built(
            linear.library,
            {**linear.weights, "w": linear.weights["w"] * factors[each.name]},
            replace(manifest, target=each),
        )
        for each in (few, many, strange)
    ]
    pack_parts(parts, tmp_path / "three.so", embed_max_bytes=1 << 30)
    session = load(tmp_path / "three.so", threads=1)
    assert session.manifest.target.name == "many"
    np.testing.assert_array_equal(library.open(tmp_path / "three.so", threads=1)(some())["y"], session(some())["y"])


def test_features_have_the_names_that_python_knows() -> None:
    row = r'^(X86|ARM)\("(.+?)", "(.+?)"(?:, AT_HWCAP2?, HWCAP2?_\w+)?\)$'
    found = re.findall(row, (NATIVE / "src/features.inc").read_text(), re.M)
    x86 = {**processor._X86_RENAMED, **{name: name for name in processor._X86_SAME_NAME}}
    arm = {**processor._ARM_RENAMED, **{name: name for name in processor._ARM_SAME_NAME}}
    assert {(flag, name) for arch, flag, name in found if arch == "X86"} == set(x86.items())
    assert {(flag, name) for arch, flag, name in found if arch == "ARM"} == set(arm.items())


def test_threads_are_this_processs_cores_or_the_settings(
    library: Library, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def threads() -> int:
        session = library.open(package / "model.so")
        return int(session.library.c.relaxc_threads(session.handle))

    assert threads() == machine.cpu().cores
    name = b"RELAXC_THREADS"  # in the C environment, which Python changes too
    monkeypatch.setitem(os.environ, name.decode(), "3")
    assert threads() == 3
    monkeypatch.setitem(os.environ, name.decode(), "x")
    assert error_of(threads)[0] == "invalid-option"

"""Loading and calling: what is refused before code runs, inputs of every kind, and whose memory the outputs are."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script import relax as R

from relaxc.service import machine
from relaxc.service.artifact.manifest import Manifest
from relaxc.service.errors import (
    ArtifactCorrupt,
    ArtifactNotFound,
    InputName,
    InputShape,
    InputType,
    InvalidOption,
    MachineMismatch,
)
from relaxc.service.request import TargetSpec
from relaxc.service.runtime import Session, load
from relaxc.service.signature import Signature, TensorSpec
from tests.runtime.conftest import Linears, aligned, build, manifest_of
from tests.waiting import PATIENCE_S, until

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def session(artifact: Make) -> Session:
    """A loaded Linear."""
    return load(artifact())


def inputs(batch: int = 5) -> dict[str, Any]:
    """Inputs of Linear."""
    rng = np.random.default_rng(batch)
    return {"x": rng.standard_normal((batch, 64)).astype(np.float32), "ids": np.arange(batch)}


def test_it_shows_its_signature_and_target(session: Session) -> None:
    shown = repr(session)
    assert shown.startswith(f"Session({', '.join(map(str, session.signature.inputs))} -> ")
    assert session.manifest.target_names in shown
    html = session._repr_html_()
    assert html.count("<tr>") == len(session.signature.inputs) + len(session.signature.outputs) + 1


def assert_right(got: dict[str, Any], linear: Linears, x: Any, ids: Any) -> None:
    want = linear.expected(np.asarray(x), np.asarray(ids))
    assert list(got) == list(want)
    for name in ("y", "doubled", "same", "constant"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
        assert got[name].dtype == want[name].dtype
    assert got["half"].dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(got["half"].astype(np.float32), want["half"].astype(np.float32), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("batch", [1, 2, 7, 1024])
@pytest.mark.parametrize("embed", [1 << 30, 0], ids=["inside", "beside"])
def test_numbers_are_right_at_several_sizes(artifact: Make, linear: Linears, batch: int, embed: int) -> None:
    session = load(artifact(embed_max_bytes=embed))
    assert_right(session(**inputs(batch)), linear, **inputs(batch))


def test_a_session_over_parts_gives_the_same(session: Session, linear: Linears) -> None:
    manifest = manifest_of(linear.signature)
    tensors = {name: tvm.runtime.tensor(array) for name, array in linear.weights.items()}
    for weights in (linear.weights, tensors):
        parts = Session.from_parts(linear.library, weights, manifest)
        for name, array in parts(**inputs()).items():
            np.testing.assert_array_equal(array, session(**inputs())[name])


def test_inputs_may_be_named_in_order_or_a_dict(session: Session, linear: Linears) -> None:
    given = inputs()
    for got in (
        session(given["x"], given["ids"]),
        session(given["x"], ids=given["ids"]),
        session(given),
        session(**given, use_cache=False),
    ):
        assert_right(got, linear, **given)


def test_memory_of_every_kind_is_taken(session: Session, linear: Linears) -> None:
    base = inputs()
    x, ids = base["x"], base["ids"]
    frozen = aligned(x)
    frozen.flags.writeable = False
    kinds = {
        "aligned": aligned(x),
        "unaligned": aligned(x, shift=4),
        "read-only": frozen,
        "column-major": np.asfortranarray(x),
        "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "reversed": x[::-1].copy()[::-1],
        "tvm": tvm.runtime.tensor(x),
    }
    for value in kinds.values():
        assert_right(session(x=value, ids=ids), linear, x, ids)


def test_torch_tensors_are_taken_without_copying_and_torch_is_not_imported_here(
    session: Session, linear: Linears
) -> None:
    torch = pytest.importorskip("torch")
    given = inputs()
    x = torch.from_numpy(given["x"])
    for value in (x, x.t().contiguous().t(), x.clone().requires_grad_(True).detach()):
        assert_right(session(x=value, ids=torch.from_numpy(given["ids"])), linear, **given)
    with pytest.raises(InputType, match="bfloat16"):
        session(x=x.bfloat16(), ids=given["ids"])


@tvm.script.ir_module
class Scalars:
    """A bfloat16 tensor, a bool one, a scalar and an empty one."""

    @R.function
    def main(
        half: R.Tensor((2, 32), "bfloat16"),
        flag: R.Tensor((3,), "bool"),
        scalar: R.Tensor((), "float32"),
        empty: R.Tensor((0, 4), "float32"),
    ):
        with R.dataflow():
            a = R.add(half, half)
            b = R.logical_not(flag)
            c = R.add(scalar, scalar)
            out = (a, b, c, empty)
            R.output(out)
        return out


@pytest.fixture(scope="module")
def scalars(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Scalars without any weights."""
    specs = (
        TensorSpec("half", "bfloat16", (2, 32)),
        TensorSpec("flag", "bool", (3,)),
        TensorSpec("scalar", "float32", ()),
        TensorSpec("empty", "float32", (0, 4)),
    )
    library = build(Scalars, tmp_path_factory.mktemp("scalars") / "library.so")
    return Session.from_parts(library, {}, manifest_of(Signature(specs, specs)))


@pytest.mark.parametrize("shift", [0, 2])
def test_bfloat16_bool_scalar_and_empty_tensors(scalars: Session, shift: int) -> None:
    half = aligned(np.arange(64).reshape(2, 32).astype(ml_dtypes.bfloat16), shift=shift)
    got = scalars(half, np.array([True, False, True]), np.float32(1.5), np.zeros((0, 4), np.float32))
    np.testing.assert_array_equal(got["half"].astype(np.float32), np.arange(64).reshape(2, 32) * 2)
    np.testing.assert_array_equal(got["flag"], [False, True, False])
    assert got["scalar"] == 3
    assert got["scalar"].shape == ()
    assert got["empty"].shape == (0, 4)


def test_torch_bfloat16_is_taken_in_any_layout(scalars: Session) -> None:
    torch = pytest.importorskip("torch")
    half = torch.arange(64, dtype=torch.bfloat16).reshape(32, 2).t()
    got = scalars(half, torch.tensor([True, False, True]), torch.tensor(1.5), torch.zeros(0, 4))
    np.testing.assert_array_equal(got["half"].astype(np.float32), half.float().numpy() * 2)
    np.testing.assert_array_equal(got["flag"], [False, True, False])


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": None}, InputType, "NoneType"),
    ({"x": [[1.0] * 64]}, InputType, "list"),
    ({"x": np.zeros((5, 64))}, InputType, "float64"),
    ({"x": np.zeros((5, 64), ">f4")}, InputType, ">f4"),
    ({"x": np.zeros((5, 64), np.float16)}, InputType, "float16"),
    ({"x": np.zeros((5, 64), object)}, InputType, "object"),
    ({"x": np.zeros((5, 63), np.float32)}, InputShape, r"axis 1 of \[5, 63\] has size 63, it must be 64"),
    ({"x": np.zeros((64,), np.float32)}, InputShape, "has 1 dims"),
    ({"x": np.zeros((5, 64, 1), np.float32)}, InputShape, "has 3 dims"),
    ({"x": np.zeros((4, 64), np.float32)}, InputShape, "batch is 4 in input 'x'"),
    ({"ids": np.zeros((5, 1), np.int64)}, InputShape, "has 2 dims"),
    ({"ids": np.zeros(5, np.int32)}, InputType, "int32"),
    ({"y": np.zeros(5)}, InputName, "no input 'y'"),
    ({"use_cache": True}, InputType, "fixed to False"),
    ({"use_cache": 0}, InputType, "fixed to False"),
    ({"use_cache": np.zeros(1)}, InputType, "fixed to False"),
]


@pytest.mark.parametrize(("change", "kind", "said"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_inputs_that_do_not_fit_are_refused(
    session: Session, change: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        session(**{**inputs(), **change})


def test_missing_surplus_and_repeated_inputs_are_refused(session: Session) -> None:
    given = inputs()
    with pytest.raises(InputName, match="missing: ids"):
        session(x=given["x"])
    with pytest.raises(InputName, match="3 inputs"):
        session(given["x"], given["ids"], given["ids"])
    with pytest.raises(InputName, match="twice"):
        session(given["x"], x=given["x"], ids=given["ids"])


def test_a_size_outside_the_bounds_is_refused_by_name(session: Session) -> None:
    for batch in (0, 1025):
        with pytest.raises(InputShape, match=rf"'batch' of input 'x' is {batch}, outside its bounds 1\.\.1024"):
            session(**inputs(batch))


def test_outputs_belong_to_the_caller(session: Session, linear: Linears) -> None:
    """Also those that are an input, a weight, or large enough to be handed over."""
    given = inputs(1000)
    kept = {name: array.copy() for name, array in given.items()}
    first = session(**given)
    copies = {name: array.copy() for name, array in first.items()}
    second = session(**inputs(999))
    for name in first:
        np.testing.assert_array_equal(first[name], copies[name])
    for a, b in itertools.combinations([*first.values(), *second.values(), *given.values()], 2):
        assert not np.shares_memory(a, b)
    for array in first.values():
        array[...] = 0
    assert_right(session(**given), linear, **kept)
    np.testing.assert_array_equal(given["x"], kept["x"])


def test_outputs_outlive_the_session(artifact: Make, linear: Linears) -> None:
    got = load(artifact())(**inputs(1000))
    gc.collect()
    assert_right(got, linear, **inputs(1000))


def test_weights_are_mapped_where_they_lie(artifact: Make) -> None:
    """Their addresses are in a mapping of the file, but for the one whose image is not aligned."""
    for path in (artifact(), artifact(embed_max_bytes=0)):
        session = load(path)
        mapped = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, mode, *_, name = line.split(maxsplit=5)
            if name in (str(path), str(path.with_suffix(".safetensors"))):
                low, high = (int(text, 16) for text in span.split("-"))
                mapped.append((low, high, mode))
        for weight in session._code.weights:
            modes = [mode for low, high, mode in mapped if low <= weight.data_ptr() < high]
            assert modes and modes[0].startswith("r--")


def test_aligned_inputs_are_not_copied(session: Session) -> None:
    x = aligned(inputs()["x"])
    (tensor, _) = session._arguments((x, inputs()["ids"]), {}, {})
    assert tensor.data_ptr() == x.ctypes.data


def test_copies_of_inputs_are_used_again(session: Session, linear: Linears) -> None:
    """By the next call with the same shapes, whose outputs are not those of the call before."""
    first, second, wider = (inputs(batch) for batch in (1000, 1000, 1001))
    for given in (first, second, wider):
        given["x"] = aligned(given["x"], shift=16)
    second["x"] += 1
    (copy, _), (again, _) = (session._arguments((), given, session._programs.first.copies) for given in (first, second))
    assert copy.data_ptr() == again.data_ptr()
    results = [(given, session(given)) for given in (first, second, wider, first)]
    for given, got in results:
        assert_right(got, linear, **given)


def test_the_manifest_is_read_before_anything_is_loaded(artifact: Make, tmp_path: Path) -> None:
    """Each refusal comes in a process into which the library was never mapped."""
    path = artifact()
    target = manifest_of(Signature((), ())).target
    arch = {"x86_64": "aarch64"}.get(machine.cpu().arch, "x86_64")
    lacking = [
        (artifact(target=replace(target, features=("avx99",))), "CPU feature avx99"),
        (artifact(requires=replace(Manifest.read(path).requires, features=("avx99",))), "CPU feature avx99"),
        (artifact(target=replace(target, triple=f"{arch}-linux-gnu")), f"architecture {arch}"),
        (artifact(requires=replace(Manifest.read(path).requires, runtime="0.1")), "TVM runtime 0.1"),
    ]
    for refused, said in lacking:
        with pytest.raises(MachineMismatch, match=said):
            load(refused)
        assert str(refused) not in Path("/proc/self/maps").read_text()


def test_a_cuda_artifact_is_refused_where_there_is_no_gpu(artifact: Make) -> None:
    if machine.gpu() is not None:
        pytest.skip("there is one")
    host = TargetSpec("here", "llvm", triple=f"{machine.cpu().arch}-linux-gnu")
    path = artifact(target=TargetSpec("cuda-sm90", "cuda", arch="sm_90", host=host))
    with pytest.raises(MachineMismatch, match=r"compute capability 9\.0"):
        load(path)


def test_devices_and_threads_are_checked(artifact: Make) -> None:
    path = artifact()
    with pytest.raises(MachineMismatch):
        load(path, device="cuda")
    for device in ("tpu", "cpu:x"):
        with pytest.raises(InvalidOption):
            load(path, device=device)
    with pytest.raises(InvalidOption):
        load(path, threads=0)
    assert load(path, device="cpu", threads=2).threads == 2


def test_a_digest_is_checked_when_given(artifact: Make) -> None:
    path = artifact(embed_max_bytes=0)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    load(path, digest=digest)
    with pytest.raises(ArtifactCorrupt, match="digest"):
        load(path, digest="0" * 64)
    sidecar = path.with_suffix(".safetensors")
    changed = bytearray(sidecar.read_bytes())
    changed[-1] ^= 1
    sidecar.write_bytes(changed)
    with pytest.raises(ArtifactCorrupt, match="bytes 0 to"):
        load(path, digest=digest)


def test_damaged_files_are_refused(artifact: Make, tmp_path: Path, linear: Linears) -> None:
    path = artifact()
    with pytest.raises(ArtifactNotFound):
        load(tmp_path / "none.so")
    with pytest.raises(ArtifactCorrupt):
        load(linear.library)
    beside = artifact(embed_max_bytes=0)
    sidecar = beside.with_suffix(".safetensors")
    image = sidecar.read_bytes()
    for damaged in (
        b"\xff" * 8 + image[8:],
        image[:8] + b"x" + image[9:],
        image[:8] + image[8:].replace(b"F32", b"I32"),
    ):
        sidecar.write_bytes(damaged)
        with pytest.raises(ArtifactCorrupt):
            load(beside)
    sidecar.write_bytes(image[:-64])
    with pytest.raises(ArtifactCorrupt, match="bytes"):
        load(beside)
    sidecar.unlink()
    with pytest.raises(ArtifactNotFound):
        load(beside)
    renamed = tmp_path / "model.bin"
    renamed.write_bytes(path.read_bytes())
    assert load(renamed).signature == linear.signature


def test_damaged_code_is_refused_before_it_is_loaded(artifact: Make) -> None:
    path = artifact()
    with path.open("r+b") as file:
        file.seek(0x40)  # the program headers: the dynamic loader would crash
        file.write(bytes([0xFF] * 16))
    with pytest.raises(ArtifactCorrupt):
        load(path)


def test_a_library_without_our_program_is_refused(tmp_path: Path, linear: Linears) -> None:
    plain = tmp_path / "plain.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", plain], input="int x;", text=True, check=True)
    with pytest.raises(ArtifactCorrupt, match="no program"):
        Session.from_parts(plain, {}, manifest_of(linear.signature))
    with pytest.raises(ArtifactCorrupt, match="arguments"):
        Session.from_parts(linear.library, linear.weights, manifest_of(Signature((), ())))
    hostile = Signature((TensorSpec("x", "float32", ("__import__('os')",)), TensorSpec("i", "int64", (1,))), ())
    with pytest.raises(ArtifactCorrupt, match="expression"):
        Session.from_parts(linear.library, linear.weights, manifest_of(hostile))


def test_calls_from_many_threads_are_right(session: Session, linear: Linears) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for batch in range(1 + seed, 60, 7):
                assert_right(session(**inputs(batch)), linear, **inputs(batch))
        except BaseException as error:  # noqa: BLE001  # to be seen by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_call_costs_little_more_than_the_program(scalars: Session) -> None:
    arrays = [aligned(np.zeros((2, 32), ml_dtypes.bfloat16)), np.zeros(3, bool), np.float32(1)]
    arrays.append(np.zeros((0, 4), np.float32))
    given = scalars._arguments(tuple(arrays), {}, {})

    def calls(run: Callable[[], object]) -> int:
        """How many functions it calls, in Python and in C: what it costs, on any machine."""
        count = 0

        def see(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        run()
        sys.setprofile(see)
        try:
            run()
        finally:
            sys.setprofile(None)
        return count

    assert calls(lambda: scalars(*arrays)) - calls(lambda: scalars._programs.first._main(*given)) < 400


@pytest.mark.slow
def test_loading_works_where_torch_cannot_be_imported(artifact: Make) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from relaxc import load
session = load({str(artifact())!r})
print(session(np.ones((2, 64), np.float32), np.arange(2))["doubled"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 2]"


def test_an_artifact_for_a_cpu_is_called_not_run_on_a_device(session: Session) -> None:
    with pytest.raises(InvalidOption, match="for a CPU"):
        session.on_device(inputs())


def test_a_call_waits_for_no_other_one(session: Session, linear: Linears, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first program and the next are taken a third call waits, and goes on when one of them is given back."""
    programs = session._programs
    monkeypatch.setattr(programs, "_most", 2)
    held = programs.take()
    assert held is programs.first
    assert_right(session(**inputs()), linear, **inputs())
    other = programs.take()
    assert other is not held
    waiting = threading.Thread(target=lambda: assert_right(session(**inputs()), linear, **inputs()))
    waiting.start()
    until(lambda: programs.waiting)
    programs.give(other)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    programs.give(held)


def test_calls_of_one_session_from_many_threads_are_right(
    session: Session, linear: Linears, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session._programs, "_most", 3)
    wants = {batch: result_of(session, batch) for batch in (2, 9, 30)}
    wrong: list[int] = []

    def work(batch: int) -> None:
        bound = session.bind(inputs(batch))
        for _ in range(20):
            if result_of(session, batch) != wants[batch] or bound()["y"].tobytes() != wants[batch]:
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in (*wants, *wants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert_right(session(**inputs()), linear, **inputs())


def result_of(session: Session, batch: int) -> bytes:
    return bytes(session(**inputs(batch))["y"].tobytes())


def test_a_forked_process_may_call_what_another_thread_was_calling(session: Session, linear: Linears) -> None:
    with session._programs.first.lock:
        child = os.fork()
        if not child:
            signal.alarm(int(PATIENCE_S))
            try:
                assert_right(session(**inputs()), linear, **inputs())
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitpid(child, 0)[1] == 0

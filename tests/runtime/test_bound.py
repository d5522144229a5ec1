"""Calls with fixed buffers: what is read and written where, what is refused, and who keeps whom alive."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script import relax as R

from relaxc.service.errors import InputName, InputShape, InputType
from relaxc.service.runtime import Session, load
from relaxc.service.signature import DimBounds, Signature, TensorSpec
from tests.runtime.conftest import Linears, aligned, build, manifest_of
from tests.runtime.test_session import REFUSED, assert_right, inputs

Make = Callable[..., Path]


@tvm.script.ir_module
class Places:
    """Twice x, and where x is not 0."""

    @R.function
    def main(x: R.Tensor((5,), "float32")):
        twice = R.add(x, x)
        return (twice, R.nonzero(x))


@pytest.fixture(scope="module")
def session(artifact: Make) -> Session:
    """A loaded Linear."""
    return load(artifact())


@pytest.mark.parametrize("batch", [1, 5, 1000])
@pytest.mark.parametrize("shift", [0, 4])
def test_inputs_are_read_at_each_call_and_outputs_stay_where_they_are(
    session: Session, linear: Linears, batch: int, shift: int
) -> None:
    given = {name: aligned(array, shift=shift) for name, array in inputs(batch).items()}
    bound = session.bind(given)
    first = bound()
    assert_right(first, linear, **given)
    places = [array.ctypes.data for array in first.values()]
    given["x"] += 1
    given["ids"] *= 3
    assert bound() is bound.outputs and [array.ctypes.data for array in bound.outputs.values()] == places
    assert_right(bound.outputs, linear, **given)


@pytest.mark.parametrize("batch", [5, 1000])
def test_outputs_of_every_kind_are_written(session: Session, linear: Linears, batch: int) -> None:
    torch = pytest.importorskip("torch")
    given = inputs(batch)
    y, half, ids = np.zeros((batch, 64), np.float32), np.zeros((batch, 64), ml_dtypes.bfloat16), np.zeros(batch, int)
    kinds: list[dict[str, Any]] = [
        {"y": aligned(y), "half": aligned(half), "doubled": aligned(ids), "same": aligned(y)},
        {"y": aligned(y, shift=4), "half": aligned(half, shift=2)},
        {"y": np.asfortranarray(y), "same": np.repeat(y, 2, axis=1)[:, ::2], "doubled": np.repeat(ids, 2)[::2]},
        {"y": torch.zeros(batch, 64), "doubled": torch.zeros(batch, dtype=torch.int64), "constant": torch.zeros(3)},
        {"y": torch.zeros(64, batch).t(), "half": torch.zeros(batch, 64, dtype=torch.bfloat16)},
        {"y": tvm.runtime.tensor(y), "half": tvm.runtime.tensor(half)},
    ]
    for outputs in kinds:
        bound = session.bind(given, outputs)
        for _ in range(3):
            found = bound()
        assert all(found[name] is value for name, value in outputs.items())
        assert_right({name: as_array(value) for name, value in found.items()}, linear, **given)


def as_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if str(value.dtype).endswith("bfloat16"):
        return value.float().numpy().astype(ml_dtypes.bfloat16) if hasattr(value, "float") else value.numpy()
    return value.numpy()


@pytest.mark.parametrize("batch", [5, 1000])
def test_a_tensor_that_torch_negates_when_it_is_read_is_read_so(session: Session, linear: Linears, batch: int) -> None:
    torch = pytest.importorskip("torch")
    given = inputs(batch)
    pairs = torch.view_as_complex(torch.from_numpy(np.stack([given["x"], given["x"]], -1)))
    negated = pairs.conj().imag
    flat = torch.from_numpy(given["x"].copy())._neg_view()
    for x in (negated, flat):
        assert x.is_neg()
        assert_right(session(x=x, ids=given["ids"]), linear, x=-given["x"], ids=given["ids"])
        bound = session.bind({"x": x, "ids": given["ids"]})
        assert_right(bound(), linear, x=-given["x"], ids=given["ids"])
        x.mul_(2)
        assert_right(bound(), linear, x=-2 * given["x"], ids=given["ids"])


def test_an_output_that_torch_negates_when_it_is_read_is_refused(session: Session) -> None:
    torch = pytest.importorskip("torch")
    for y in (torch.zeros(5, 64)._neg_view(), torch.zeros(5, 64, dtype=torch.complex64).conj().imag):
        with pytest.raises(InputType, match="negates"):
            session.bind(inputs(), {"y": y})


@pytest.mark.parametrize("name", ["complex", "meta", "sparse"])
def test_tensors_that_are_no_plain_floats_are_refused(session: Session, name: str) -> None:
    torch = pytest.importorskip("torch")
    kinds = {
        "complex": torch.zeros(5, 64, dtype=torch.complex64).conj(),
        "meta": torch.zeros(5, 64, device="meta"),
        "sparse": torch.zeros(5, 64).to_sparse(),
    }
    for call in (session.bind, lambda given: session(**given)):
        with pytest.raises(InputType, match="'x'"):
            call({**inputs(), "x": kinds[name]})
    with pytest.raises(InputType, match="'y'"):
        session.bind(inputs(), {"y": kinds[name]})


def test_torch_tensors_are_read_where_they_are(session: Session, linear: Linears) -> None:
    torch = pytest.importorskip("torch")
    given = inputs()
    x = torch.from_numpy(given["x"].copy())
    bound = session.bind({"x": x, "ids": torch.from_numpy(given["ids"])})
    x.mul_(2)
    assert_right(bound(), linear, given["x"] * 2, given["ids"])


@pytest.mark.parametrize("batch", [5, 1000])
def test_an_output_may_be_written_over_an_input(session: Session, linear: Linears, batch: int) -> None:
    """As a state is, which the next call reads."""
    given = inputs(batch)
    x = aligned(given["x"] / 64)
    bound = session.bind({"x": x, "ids": given["ids"]}, {"y": x})
    want = x.copy()
    for _ in range(3):
        before, found = x.copy(), bound()
        want = linear.expected(want, given["ids"])["y"]
        np.testing.assert_array_equal(found["same"], before)
        np.testing.assert_allclose(x, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
        want = x.copy()


def read_only() -> Any:
    array = np.zeros((5, 64), np.float32)
    array.flags.writeable = False
    return array


WIDE = np.zeros((6, 64), np.float32)


@pytest.mark.parametrize(
    ("outputs", "kind", "said"),
    [
        ({"z": np.zeros(1)}, InputName, "no output 'z'; there are y, half"),
        ({"y": np.zeros((5, 64))}, InputType, "is float64, it must be float32"),
        ({"y": np.zeros((5, 64), ">f4")}, InputType, ">f4"),
        ({"y": np.zeros((4, 64), np.float32)}, InputShape, r"shape \[4, 64\], it must have \[5, 64\]"),
        ({"y": np.zeros((5, 64, 1), np.float32)}, InputShape, "shape"),
        ({"y": read_only()}, InputType, "read-only"),
        ({"y": [[0.0]]}, InputType, "is a list"),
        ({"y": None}, InputType, "NoneType"),
        ({"y": WIDE[:5], "same": WIDE[1:]}, InputType, "overlaps another"),
        ({"y": np.lib.stride_tricks.as_strided(WIDE, (5, 64), (0, 4))}, InputType, "in one place"),
        ({"y": np.lib.stride_tricks.as_strided(WIDE, (5, 64), (4, 4))}, InputType, "in one place"),
        ({"y": np.lib.stride_tricks.as_strided(WIDE[5], (5, 64), (-252, 4))}, InputType, "in one place"),
        ({"half": np.zeros((5, 64), np.float16)}, InputType, "bfloat16"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    session: Session, outputs: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        session.bind(inputs(), outputs)
    assert session(**inputs())


@pytest.mark.parametrize("batch", [5, 1000])
def test_outputs_may_be_parts_of_one_array(session: Session, linear: Linears, batch: int) -> None:
    given, whole = inputs(batch), np.zeros((batch, 128), np.float32)
    found = session.bind(given, {"y": whole[:, :64], "same": whole[:, 64:]})()
    assert_right(found, linear, **given)
    with pytest.raises(InputType, match="overlaps another"):
        session.bind(given, {"y": whole[:, :64], "same": whole[:, 63:127]})


def test_an_output_in_reverse_is_written(session: Session, linear: Linears) -> None:
    y = np.zeros((5, 64), np.float32)[::-1, ::-1]
    assert_right(session.bind(inputs(), {"y": y})(), linear, **inputs())


def test_a_size_that_values_decide_must_be_that_of_the_array(tmp_path: Path) -> None:
    signature = Signature(
        (TensorSpec("x", "float32", (5,)),),
        (TensorSpec("twice", "float32", (5,)), TensorSpec("places", "int64", (1, "n"))),
        (("n", DimBounds(0, None)),),
    )
    session = Session.from_parts(build(Places, tmp_path / "places.so"), {}, manifest_of(signature))
    x = np.ones(5, np.float32)
    bound = session.bind({"x": x})
    assert bound()["places"].tolist() == [[0, 1, 2, 3, 4]]
    x[1:] = 0
    with pytest.raises(InputShape, match=r"'places' has the shape \[1, 1\] now.*bound one has \[1, 5\]"):
        bound()
    assert bound.outputs["twice"].tolist() == [2] * 5
    x[...] = 3
    assert bound()["twice"].tolist() == [6] * 5


@pytest.mark.parametrize(("change", "kind", "said"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_inputs_are_checked_as_by_a_call(
    session: Session, change: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        session.bind({**inputs(), **change})


def test_a_bound_call_keeps_all_that_it_needs(artifact: Make, linear: Linears) -> None:
    want = inputs()
    bound = load(artifact()).bind({name: array.copy() for name, array in inputs().items()})
    gc.collect()
    assert_right(bound(), linear, **want)


def test_bound_calls_and_others_leave_each_other_alone(artifact: Make, linear: Linears) -> None:
    session = load(artifact())
    one, two = inputs(), inputs()
    two["x"] = two["x"] + 1
    first, second = session.bind(one), session.bind(two)
    failures: list[BaseException] = []

    def work(call: Callable[[], dict[str, Any]], given: dict[str, Any]) -> None:
        try:
            for _ in range(100):
                assert_right(call(), linear, **given)
        except BaseException as error:  # noqa: BLE001  # to be seen by the test's own thread
            failures.append(error)

    calls = [(first, one), (second, two), (lambda: session(**one), one), (lambda: session(**two), two)]
    threads = [threading.Thread(target=work, args=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures

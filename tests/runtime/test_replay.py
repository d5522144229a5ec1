"""Small programs called again without the virtual machine: the same numbers, checks and errors; no memory shared."""

from __future__ import annotations

import itertools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tvm
from tvm.script import relax as R

from relaxc.service.runtime import Session, load, replay
from relaxc.service.runtime.replay import Work
from relaxc.service.signature import Signature, TensorSpec
from tests.runtime.conftest import Linears, aligned, build, manifest_of
from tests.runtime.test_session import REFUSED, assert_right, inputs

Make = Callable[..., Path]


@pytest.fixture
def session(artifact: Make) -> Session:
    """A Linear that replays calls with a batch of 5."""
    session = load(artifact())
    warm(session)
    return session


def warm(session: Session, batch: int = 5) -> None:
    for _ in range(2):
        session(**inputs(batch))


def is_replayed(session: Session, **given: Any) -> bool:
    return session._programs.first.replays.find((), given) is not None


def test_a_shape_that_comes_again_is_replayed_and_right(artifact: Make, linear: Linears) -> None:
    session = load(artifact())
    for turn, batch in itertools.product(range(4), (1, 2, 7)):
        given = inputs(batch)
        given["x"] = given["x"] + np.float32(turn)
        assert is_replayed(session, **given) == (turn > 1)
        assert_right(session(**given), linear, **given)
    given = inputs(7)
    for got in (session(given["x"], given["ids"]), session(given), session(given["x"], ids=given["ids"])):
        assert_right(got, linear, **given)


@pytest.mark.parametrize(("change", "kind", "said"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_is_refused_is_refused_by_the_same_error(
    session: Session, artifact: Make, change: dict[str, Any], kind: type[Exception], said: str
) -> None:
    given = {**inputs(), **change}
    with pytest.raises(kind, match=said) as after:
        session(**given)
    with pytest.raises(kind) as before:
        load(artifact())(**given)
    assert str(after.value) == str(before.value)


def test_what_a_call_lacks_or_has_beside_is_refused(session: Session) -> None:
    given = inputs()
    x, ids = given["x"], given["ids"]
    for args, named in (((x,), {}), ((x, ids, ids), {}), ((x, ids), {"x": x}), ((), {"x": x}), ((given, ids), {})):
        with pytest.raises(Exception, match=r"missing|3 inputs|twice|dict"):
            session(*args, **named)


def test_memory_of_every_kind_is_taken(session: Session, linear: Linears) -> None:
    given = inputs()
    x, ids = given["x"], given["ids"]
    frozen = x.copy()
    frozen.flags.writeable = False
    for value in (
        aligned(x), aligned(x, shift=4), frozen, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2],
        x[::-1].copy()[::-1], x.view(np.matrix), np.ma.masked_array(x), tvm.runtime.tensor(x),
    ):  # fmt: skip
        assert_right(session(x=value, ids=ids), linear, x, ids)


def test_arrays_with_a_dtype_of_their_own_are_replayed(session: Session) -> None:
    given = pickle.loads(pickle.dumps(inputs(5)))  # noqa: S301
    assert given["x"].dtype is not np.dtype("float32")
    assert is_replayed(session, **given)


def test_outputs_belong_to_the_caller(session: Session, linear: Linears) -> None:
    given, other = inputs(), inputs()
    other["x"] = other["x"] * 2
    first = session(**given)
    copies = {name: array.copy() for name, array in first.items()}
    second = session(**other)
    for name, array in first.items():
        np.testing.assert_array_equal(array, copies[name])
    for one, two in itertools.combinations([*first.values(), *second.values(), *given.values()], 2):
        assert not np.shares_memory(one, two)
    for array in first.values():
        assert array.flags.owndata or array.base is not None
        array[...] = 0
    assert_right(session(**given), linear, **given)


def test_the_number_of_shapes_that_are_kept_is_bounded(artifact: Make) -> None:
    session = load(artifact())
    for batch in range(1, 41):
        warm(session, batch)
    assert len(session._programs.first.replays._found) <= 16
    assert is_replayed(session, **inputs(40)) and not is_replayed(session, **inputs(1))


def test_the_shapes_that_are_kept_are_those_used_last(artifact: Make) -> None:
    session = load(artifact())
    warm(session, 1)
    for batch in range(2, 41):
        warm(session, batch)
        session(**inputs(1))
        assert is_replayed(session, **inputs(1))
    assert is_replayed(session, **inputs(40)) and not is_replayed(session, **inputs(2))


def test_a_run_of_much_memory_is_not_replayed(artifact: Make, linear: Linears, monkeypatch: pytest.MonkeyPatch) -> None:
    session = load(artifact())
    warm(session, 500)
    assert not is_replayed(session, **inputs(500))
    monkeypatch.setattr(replay, "_MAX_BYTES", 100)
    warm(session)
    assert not is_replayed(session, **inputs())
    assert_right(session(**inputs()), linear, **inputs())


@tvm.script.ir_module
class Branch:
    """x + x, or x * x where the flag is not set."""

    @R.function
    def main(x: R.Tensor((4,), "float32"), flag: R.Tensor((), "bool")):
        if flag:  # noqa: SIM108  # TVMScript
            y = R.add(x, x)
        else:
            y = R.multiply(x, x)
        return (y,)


@pytest.fixture(scope="module")
def branch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Branch without any weights."""
    specs = (TensorSpec("x", "float32", (4,)), TensorSpec("flag", "bool", ()))
    library = build(Branch, tmp_path_factory.mktemp("branch") / "library.so")
    yield Session.from_parts(library, {}, manifest_of(Signature(specs, (TensorSpec("y", "float32", (4,)),))))


def test_a_program_that_branches_by_values_is_not_replayed(branch: Session) -> None:
    x = np.arange(4, dtype=np.float32) + 3
    for flag in (True, True, True, False, True, False):
        np.testing.assert_array_equal(branch(x, np.array(flag))["y"], x + x if flag else x * x)
        assert not is_replayed(branch, x=x, flag=np.array(flag))
    flag = np.array(True)
    bound = branch.bind({"x": x, "flag": flag})
    for flag[...] in (True, False):
        np.testing.assert_array_equal(bound()["y"], x + x if flag else x * x)


def test_threads_that_share_a_session_get_what_each_gets_alone(session: Session, linear: Linears) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        given = inputs(3 + seed % 2)
        given["x"] = given["x"] + np.float32(seed)
        try:
            for _ in range(200):
                assert_right(session(**given), linear, **given)
        except BaseException as error:  # noqa: BLE001  # to be seen by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("calls", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_calls_keep_no_memory(session: Session, calls: int) -> None:
    given, resident = inputs(), psutil.Process().memory_info
    bound = session.bind(given)
    for _ in range(1000):
        session(**given)
        bound()
    before = resident().rss
    for _ in range(calls):
        session(**given)
        bound()
    assert resident().rss - before < 4 << 20


def test_threads_are_used_where_they_gain_more_than_their_launch() -> None:
    rows = [{"function": "f", "flops": "n * 1000", "bytes": "n"}, {"function": "odd", "flops": "__", "bytes": []}, 7]
    work = Work(rows, 4)  # type: ignore[arg-type]
    assert work.threads(["f", "f"], {"n": 1}) == 1
    assert work.threads(["f"], {"n": 1 << 20}) == 4
    for unknown in (["g"], ["odd"]):
        assert work.threads(unknown, {"n": 1}) == 4
    assert work.threads(["f"], {}) == 4
    assert Work(rows, 1).threads(["f"], {"n": 1 << 20}) == 1  # type: ignore[arg-type]


def test_whatever_is_given_is_replayed(session: Session, linear: Linears) -> None:
    """Also what needs all checks; an instrument sees that the kernels alone are called."""
    torch = pytest.importorskip("torch")
    given = inputs()
    seen: list[str] = []

    def note(_function: Any, name: str, before: bool, *_rest: Any) -> int:
        seen.append(f"{name} {'begins' if before else 'ends'}")
        return 0

    for x in (given["x"], np.asfortranarray(given["x"]), torch.from_numpy(given["x"])):
        seen.clear()
        assert_right(session.run_instrumented({"x": x, "ids": given["ids"]}, note), linear, **given)
        assert "matmul begins" in seen and "matmul ends" in seen
        assert not any(name.startswith("vm.") for name in seen)


def test_a_session_is_freed_with_its_last_name(artifact: Make) -> None:
    """Its program is, not when the garbage collector comes: it may hold much memory."""
    session = load(artifact())
    warm(session)
    bound, gone = session.bind(inputs()), weakref.ref(session._programs.first)
    del session
    assert gone() is not None and bound()
    del bound
    assert gone() is None

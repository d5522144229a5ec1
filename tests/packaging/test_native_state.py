"""State in the package's library beside the Python runtime: the same steps, overflow and reset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import relax as R

from relaxc.service.artifact import pack
from relaxc.service.runtime import load
from relaxc.service.signature import Signature, TensorSpec
from tests.packaging.native import Library, NativeError
from tests.runtime.conftest import build, manifest_of


@tvm.script.ir_module
class Sums:
    """A running sum, the sum before it, and how far a place is beyond the third."""

    @R.function
    def main(
        x: R.Tensor((2,), "float32"),
        place: R.Tensor((), "int64"),
        total: R.Tensor((2,), "float32"),
        last: R.Tensor((2,), "float32"),
    ):
        with R.dataflow():
            outside = R.subtract(place, R.const(2, "int64"))
            following = R.add(total, x)
            y = R.add(following, last)
            out = (y, outside, following, total)
            R.output(out)
        return out


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of Sums, of which `last` begins with 5 and 7."""
    folder = tmp_path_factory.mktemp("sums")
    state = tuple(TensorSpec(name, "float32", (2,)) for name in ("total", "last"))
    inputs = (TensorSpec("x", "float32", (2,)), TensorSpec("place", "int64", ()))
    signature = Signature(inputs, (TensorSpec("y", "float32", (2,)),), state=state, initial=("last",))
    weights = {"initial.last": np.array([5, 7], np.float32)}
    library = build(Sums, folder / "library.so")
    pack(library, weights, manifest_of(signature), folder / "sums.so", embed_max_bytes=1 << 30)
    return folder / "sums.so"


def test_steps_overflow_and_reset_are_python_s(library: Library, sums: Path) -> None:
    native, ours = library.open(sums, threads=1), load(sums, threads=1)
    assert native.specs("input") == [("x", "float32", ["2"]), ("place", "int64", [])]
    for _ in range(2):
        total, last = np.zeros(2, np.float32), np.array([5, 7], np.float32)
        for place in range(3):
            given = {"x": np.array([1, place], np.float32), "place": np.array(place)}
            total, want = total + given["x"], total + given["x"] + last
            last = total - given["x"]
            for session in (native, ours):
                np.testing.assert_array_equal(session(given)["y"], want)
        with pytest.raises(NativeError, match="1 places outside") as caught:
            native({**given, "place": np.array(3)})
        assert caught.value.code == "state-overflow"
        np.testing.assert_array_equal(native(given)["y"], ours(given)["y"])
        library.check(library.c.relaxc_reset(native.handle))
        assert ours.state is not None
        ours.state.reset()

"""What an artifact calls and does not hold is in the small runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import relax

from relaxc.service.errors import UnsupportedModel
from relaxc.service.lowering.build import build
from relaxc.service.lowering.outside_functions import _is_in_runtime
from relaxc.service.passes import finalize
from relaxc.service.request import TargetSpec
from tests.passes.graphs import TARGET, graph

SPEC = TargetSpec("here", "llvm", triple="x86_64-linux-gnu")
NAMES = ("vm.builtin.alloc_storage", "vm.builtin.tensor_to_shape", "tvm.contrib.sort.argsort", "relax.run.nonzero")


def _calls(name: str) -> Any:
    made = graph(lambda x: relax.call_pure_packed(name, x, ty_args=relax.TensorType([4], "float32")), x=(4,))
    return finalize(made, TARGET)[0]


@pytest.mark.parametrize("name", ["relax.run.nonzero", "mine.double"])
def test_a_function_that_only_python_has_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"does not have these functions: {name}"):
        build(_calls(name), SPEC, tmp_path / "model.so")


def test_what_the_runtime_has_is_built(tmp_path: Path) -> None:
    build(_calls("vm.builtin.copy"), SPEC, tmp_path / "model.so")
    assert (tmp_path / "model.so").is_file()


def test_what_is_said_to_be_there_is_there_without_tvm() -> None:
    code = (
        "import sys, tvm_ffi\nfrom relaxc.service.runtime.tvm_runtime import load_libraries\nload_libraries()\n"
        "assert 'tvm' not in sys.modules\n"
        "print([tvm_ffi.get_global_func(name, allow_missing=True) is not None for name in sys.argv[1:]])"
    )
    done = subprocess.run([sys.executable, "-c", code, *NAMES], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([_is_in_runtime(name) for name in NAMES]) == str([True, True, True, False])


def test_tvm_itself_has_what_is_refused() -> None:
    assert tvm.get_global_func("relax.run.nonzero", allow_missing=True) is not None

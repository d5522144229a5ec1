"""A quick import of TVM leaves what an import leaves, but for a module whose library is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_LOOK = """
import json, sys
from contextlib import nullcontext
sys.modules["torch"] = None
from relaxc.service.process.tvm_import import quick_import
with quick_import() if sys.argv[1] == "quick" else nullcontext():
    import tvm, tvm.relax.frontend.onnx
import tvm_ffi
def owner(value):
    return type(value).__name__
print(json.dumps({
    "operators": sorted(map(str, tvm.ir.Op.list_op_names())),
    "printed": {str(n): str(tvm.ir.Op.get(n).get_attr("TScriptPrinterName")) for n in tvm.ir.Op.list_op_names()},
    "functions": sorted(n for n in tvm_ffi.registry.list_global_func_names()
                        if not n.startswith("runtime.disco.")),
    "disco": tvm.runtime.disco is None,
    "modules": {n: {k: owner(v) for k, v in vars(m).items()} for n, m in sys.modules.items()
                if n.startswith("tvm.") and n.endswith("_ffi_api") and "disco" not in n},
    "own": [tvm.ir._ffi_api.GetOp.__module__ if hasattr(tvm.ir._ffi_api.GetOp, "__func__") else "",
            tvm_ffi.init_ffi_api.__module__],
}))
"""


def _left(how: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", _LOOK, how], capture_output=True, text=True, check=True)
    left: dict[str, object] = json.loads(done.stdout)
    return left


def test_what_is_imported_is_the_same() -> None:
    quick, plain = _left("quick"), _left("plain")
    for name, found in plain.items():
        assert quick[name] == found, name


def test_an_operator_that_is_not_there_is_no_answer() -> None:
    from relaxc.service.process.tvm_import import _Operators

    class Functions:
        @staticmethod
        def ListOpNames() -> list[str]:
            return ["relax.add"]

        GetOp = OpGetAttr = RegisterOpAttr = staticmethod(lambda *a: a)
        RegisterOp = staticmethod(lambda *a: None)

    operators = _Operators(Functions)
    with pytest.raises(AttributeError, match=r"there is no operator relax\.sub"):
        operators.get("relax.sub")
    operators.add("relax.sub")
    assert operators.get("relax.sub") == ("relax.sub",)


_CHECKED = """
import sys
sys.modules["torch"] = None
from relaxc.service.process.tvm_import import quick_import
with quick_import():
    from tvm.s_tir import Schedule
print(hasattr(Schedule.split, "__wrapped__"))
"""


@pytest.mark.parametrize("strict", ["", "1"])
def test_steps_of_schedules_check_types_in_tests_alone(strict: str) -> None:
    environment = {**os.environ, "RELAXC_STRICT": strict}
    done = subprocess.run([sys.executable, "-c", _CHECKED], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == str(bool(strict))

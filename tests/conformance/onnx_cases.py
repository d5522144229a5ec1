"""The ONNX project's node tests: each case built without our passes, or as `relaxc compile` does, run and compared."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "all_cases", "run_case"]

CONSTANT = "[const]"
"""A case under this suffix has every input after the first as an initializer, as exporters write axes and shapes."""


@dataclass(frozen=True)
class Outcome:
    """`status`: pass, unsupported (refused with a documented error), wrong (a number or shape), called-wrong (by our
    own verification), or broken.
    """

    case: str
    status: str
    detail: str = ""


@lru_cache(maxsize=1)
def _cases() -> dict[str, Any]:
    import warnings

    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        # The suite computes its own expected overflows and divisions by zero.
        warnings.simplefilter("ignore", RuntimeWarning)
        return {case.name: case for case in load_model_tests(kind="node")}


def all_cases() -> list[str]:
    """The names of all cases, plain ones only."""
    return sorted(_cases())


def run_case(name: str, *, compiled: bool = False) -> Outcome:
    """What became of a case, with `compiled` by `relaxc compile`. A crash of the process is for the caller to see."""
    from relaxc.service.errors import CompileFailed, ModelError, VerificationFailed

    case = _cases()[name.removesuffix(CONSTANT)]
    with tempfile.TemporaryDirectory() as scratch:
        path, inputs, wanted = _prepare(case, Path(scratch), constant=name.endswith(CONSTANT))
        try:
            got = (_compiled if compiled else _execute)(path, inputs)
        except VerificationFailed as error:
            return Outcome(name, "called-wrong", str(error))
        except CompileFailed as error:
            return Outcome(name, "broken", str(error))
        except ModelError as error:
            return Outcome(name, "unsupported", f"{error.code}: {error}")
        except Exception as error:  # noqa: BLE001  # anything else is what this suite looks for
            return Outcome(name, "broken", f"{type(error).__name__}: {str(error)[:400]}")
    return _judge(name, got, wanted)


def _prepare(case: Any, scratch: Path, *, constant: bool) -> tuple[Path, list[Any], list[Any]]:
    import onnx

    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    inputs, wanted = ([_array(value) for value in values] for values in case.data_sets[0])
    if constant:
        for info, array in zip(model.graph.input[1:], inputs[1:], strict=True):
            if hasattr(array, "dtype"):
                model.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
        fixed = {tensor.name for tensor in model.graph.initializer}
        kept = [info for info in model.graph.input if info.name not in fixed]
        del model.graph.input[1:]
        model.graph.input.extend(kept[1:])
        inputs = inputs[:1]
    path = scratch / "model.onnx"
    onnx.save(model, path)
    return path, list(inputs), list(wanted)


def _array(value: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _compiled(path: Path, inputs: list[Any]) -> list[Any]:
    """The outputs of the artifact, which is compiled anew and verified, as by default; but with what it would keep as
    state as inputs and outputs, as the case has them.
    """
    import numpy as np

    import relaxc
    from relaxc.service.compiler import prepare
    from relaxc.service.jobs.local.calls import compile_local, warm_for
    from relaxc.service.request import CompileOptions

    warm_for(path)
    request = prepare(path, target="auto", options=CompileOptions(state=()))
    session = relaxc.load(compile_local(request, force=True).path)
    return list(session(*[np.asarray(array) for array in inputs]).values())


def _execute(path: Path, inputs: list[Any]) -> list[Any]:
    import numpy as np
    import tvm
    from tvm import relax

    from relaxc.service.frontend import load
    from relaxc.service.request import ModelFormat
    from relaxc.service.runtime.arguments import Codes

    imported = load(path, ModelFormat.ONNX)
    executable = tvm.compile(imported.module, target="llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    codes = Codes(imported.signature)
    given = codes.given(tuple(inputs), {}).values()
    arguments = [tvm.runtime.tensor(np.ascontiguousarray(array).reshape(np.shape(array))) for array in given]
    results = [result.numpy() for result in machine["main"](*arguments)]
    names = [spec.name for spec in imported.signature.outputs]
    return list(codes.numbers(dict(zip(names, results, strict=True))).values())


def _judge(name: str, got: list[Any], wanted: list[Any]) -> Outcome:
    import numpy as np

    if len(got) != len(wanted):
        return Outcome(name, "wrong", f"{len(got)} outputs, {len(wanted)} wanted")
    for place, (a, b) in enumerate(zip(got, wanted, strict=True)):
        b = np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return Outcome(name, "wrong", f"output {place} is {a.dtype}{a.shape}, wanted {b.dtype}{b.shape}")
        # The suite's own tolerances (onnx.backend.test.runner), wider for dtypes with fewer digits.
        digits = {"float16": 2e-3, "bfloat16": 2e-2}.get(str(b.dtype), 1e-3)
        if b.dtype.kind in "iub":
            if not (a == b).all():
                return Outcome(name, "wrong", f"output {place}: {int((a != b).sum())} of {a.size} differ")
        elif not np.allclose(
            a.astype("float64"), b.astype("float64"), rtol=digits, atol=max(digits / 100, 1e-7), equal_nan=True
        ):
            worst = np.nanmax(np.abs(a.astype("float64") - b.astype("float64")))
            return Outcome(name, "wrong", f"output {place} differs by {worst}")
    return Outcome(name, "pass")

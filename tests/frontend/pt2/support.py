"""Runs an imported program through TVM's stock pipeline, and compares it with torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from relaxc.service.frontend.model import ImportedModel
from relaxc.service.frontend.pt2 import frontend as exported_program
from relaxc.service.frontend.pt2.reference import to_numpy
from relaxc.service.signature import Dim
from tests import quickly

__all__ = ["Case", "arrays_of", "by_every_stage", "check", "compiled", "export"]

TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2}
"""Largest difference by dtype, relative to the largest value of an output."""

Case = tuple[tuple[Any, ...], dict[str, Any]]


def export(path: Path, module: Any, *args: Any, dynamic: Any = None, **kwargs: Any) -> Path:
    """Writes module(*args, **kwargs) as torch.export.save does."""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what it does not lift out of recurrent layers
        program = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic)
        torch.export.save(program, path)
    return path


def arrays_of(*args: Any, **kwargs: Any) -> list[Any]:
    """The tensors of a call as arrays, in the order of the program's inputs."""
    import torch
    from torch.utils import _pytree

    leaves = _pytree.tree_leaves((args, kwargs))
    return [to_numpy(leaf, None) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def compiled(model: ImportedModel) -> Any:
    """Arrays in, arrays out, by TVM's own pipeline without optimization, and our kernels where TVM has none."""
    import tvm
    from tvm import relax

    from relaxc.service.passes.legalize.legalize_functions import FUNCTIONS
    from relaxc.service.passes.legalize.legalize_powers import POWERS

    with quickly.target():
        module = relax.backend.DispatchSortScan()(relax.transform.DecomposeOpsForInference()(model.module))
        module = relax.transform.LegalizeOps(FUNCTIONS | POWERS)(module)
    machine = quickly.machine_of(tvm.compile(module, quickly.target()))

    def run(arrays: Sequence[Any]) -> list[Any]:
        return [out.numpy() for out in machine["main"](*map(tvm.runtime.tensor, arrays))]

    return run


def by_every_stage(path: Path) -> Any:
    """Arrays in, arrays out, by all of our passes and schedules for x86-64-v3, with LLVM's plainest machine code."""
    import tvm
    from tvm import relax

    from relaxc.service.lowering import pipeline, schedule
    from relaxc.service.lowering.target import resolve, to_tvm
    from relaxc.service.passes import finalize, optimize
    from relaxc.service.request import CompileOptions

    pipeline.register()
    spec = resolve("x86-64-v3")
    model = exported_program.load(path, shapes={})
    optimized = optimize(model.module, to_tvm(spec), CompileOptions())
    ready, _ = finalize(schedule(optimized.module, spec).module, to_tvm(spec))
    machine = quickly.machine_of(relax.build(ready, quickly.target(), relax_pipeline=None, tir_pipeline=pipeline.NAME))
    weights = tvm.runtime.convert(list(optimized.weights.values()))

    def run(arrays: Sequence[Any]) -> list[Any]:
        return [out.numpy() for out in machine["main"](*map(tvm.runtime.tensor, arrays), weights)]

    return run


def check(
    path: Path, *cases: Sequence[Any], shapes: Mapping[str, tuple[Dim, ...]] | None = None, nodes: Sequence[str] = ()
) -> ImportedModel:
    """Compares the program at `path`, compiled once, with torch on each case (arrays in order).

    Outputs named in `nodes` may differ: an argmax over 16-bit numbers has ties.
    """
    model = exported_program.load(path, shapes=shapes or {})
    reference = exported_program.reference(path, threads=1, shapes=shapes or {})
    run = compiled(model)
    names = [spec.name for spec in model.signature.inputs]
    for arrays in cases:
        want = reference(dict(zip(names, arrays, strict=True)))
        got = dict(zip(want, run(arrays), strict=True))
        assert list(want) == [spec.name for spec in model.signature.outputs]
        for spec in model.signature.outputs:
            assert want[spec.name].dtype.name == got[spec.name].dtype.name == spec.dtype
            if spec.name not in nodes:
                _assert_close(spec.name, got[spec.name], want[spec.name])
    return model


def _assert_close(name: str, got: Any, want: Any) -> None:
    assert got.shape == want.shape, name
    if want.dtype.kind in "iub" or want.size == 0:
        np.testing.assert_array_equal(got, want, err_msg=name)
        return
    tolerance = TOLERANCE[want.dtype.name]
    got, want = got.astype("float64"), want.astype("float64")
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want), err_msg=name)
    finite = np.isfinite(want)
    largest = max(float(np.abs(want[finite]).max(initial=0)), 1e-6)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * largest, err_msg=name)

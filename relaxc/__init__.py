"""relaxc: a model in, one verified `.so` out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaxc import torch_backend
    from relaxc.service import errors
    from relaxc.service.artifact.compiled import CompiledArtifact
    from relaxc.service.jobs.local.calls import compile
    from relaxc.service.jobs.local.tune import TuneResult, tune
    from relaxc.service.passes.triton_kernel import TritonKernel
    from relaxc.service.request import CompileOptions, CompileRequest, ModelFormat, Precision, TargetSpec
    from relaxc.service.runtime.loading import load
    from relaxc.service.runtime.session import Session
    from relaxc.service.signature import DimBounds, Signature, TensorSpec
    from relaxc.service.tuning.options import TuneOptions

__all__ = [
    "CompileOptions",
    "CompileRequest",
    "CompiledArtifact",
    "DimBounds",
    "ModelFormat",
    "Precision",
    "Session",
    "Signature",
    "TargetSpec",
    "TensorSpec",
    "TritonKernel",
    "TuneOptions",
    "TuneResult",
    "compile",
    "errors",
    "load",
    "torch_backend",
    "tune",
]

_HOME = {
    "CompiledArtifact": "relaxc.service.artifact.compiled",
    **dict.fromkeys(("DimBounds", "Signature", "TensorSpec"), "relaxc.service.signature"),
    "Session": "relaxc.service.runtime.session",
    "TritonKernel": "relaxc.service.passes.triton_kernel",
    "TuneOptions": "relaxc.service.tuning.options",
    "TuneResult": "relaxc.service.jobs.local.tune",
    "compile": "relaxc.service.jobs.local.calls",
    "load": "relaxc.service.runtime.loading",
    "tune": "relaxc.service.jobs.local.tune",
    "errors": "relaxc.service.errors",
    "torch_backend": "relaxc.torch_backend",
}


def __getattr__(name: str) -> Any:
    """Public names are looked up when they are used: `import relaxc` alone imports neither tvm nor torch."""
    if name not in __all__:
        raise AttributeError(f"module 'relaxc' has no attribute {name!r}")
    module = import_module(_HOME.get(name, "relaxc.service.request"))
    return module if name in ("errors", "torch_backend") else getattr(module, name)

"""relaxc: a model in, one verified `.so` out."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service import errors
    from service.artifact.compiled import CompiledArtifact
    from service.jobs.local.calls import compile
    from service.jobs.local.tune import TuneResult, tune
    from service.passes.triton_kernel import TritonKernel
    from service.request import CompileOptions, CompileRequest, ModelFormat, Precision, TargetSpec
    from service.runtime.loading import load
    from service.runtime.session import Session
    from service.signature import DimBounds, Signature, TensorSpec
    from service.tuning.options import TuneOptions

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
    "tune",
]

_HOME = {
    "CompiledArtifact": "service.artifact.compiled",
    **dict.fromkeys(("DimBounds", "Signature", "TensorSpec"), "service.signature"),
    "Session": "service.runtime.session",
    "TritonKernel": "service.passes.triton_kernel",
    "TuneOptions": "service.tuning.options",
    "TuneResult": "service.jobs.local.tune",
    "compile": "service.jobs.local.calls",
    "load": "service.runtime.loading",
    "tune": "service.jobs.local.tune",
    "errors": "service.errors",
}


def __getattr__(name: str) -> Any:
    """Public names are looked up when they are used: `import service` alone imports neither tvm nor torch."""
    if name not in __all__:
        raise AttributeError(f"module 'service' has no attribute {name!r}")
    module = import_module(_HOME.get(name, "service.request"))
    return module if name == "errors" else getattr(module, name)

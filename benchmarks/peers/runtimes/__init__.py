"""The runtimes: one file each, with what prepares a model for it and what loads that."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from benchmarks.peers.cases import Case

__all__ = ["OURS", "RUNTIMES", "Loaded", "Prepared", "Runtime", "counts", "environment", "runtime"]

OURS = "relaxc"

# name → module of this package; and whether it computes in fp32, so that its time counts as a peer's.
RUNTIMES = {
    "relaxc": "relaxc",
    "relaxc-untuned": "relaxc_untuned",
    "relaxc-other": "relaxc_other",
    "relaxc-fp32": "relaxc_fp32",
    "onnxruntime": "onnx_runtime",
    "openvino": "open_vino",
    "openvino-bf16": "open_vino_bf16",
    "aotinductor": "aot_inductor",
    "torch": "torch_eager",
}

_ONEDNN = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
_TORCH = {**_ONEDNN, "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
# name → the variables that keep it to AVX2. ONNX Runtime's MLAS has none: it asks the processor.
_CAPS = {"openvino": _ONEDNN, "aotinductor": _TORCH, "torch": _TORCH, "relaxc-other": {}}


@dataclass(frozen=True)
class Prepared:
    """What was compiled before loading: `compile_s` None where loading compiles. `size_bytes` is what is shipped."""

    size_bytes: int
    compile_s: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts for the report, such as the target."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to run: `run` takes no arguments, its inputs are bound; `arrays` makes numpy of its result."""

    run: Callable[[], Any]
    arrays: Callable[[Any], list[Any]]


class Runtime(Protocol):
    """What a module of this package defines."""

    COUNTS: bool
    """Whether it is a peer for the ratio: it computes in fp32."""

    def version(self) -> str:
        """The version of the runtime."""
        ...

    def supports(self, case: Case) -> bool:
        """Whether the case's model can be had in the runtime's format."""
        ...

    def prepare(self, case: Case, folder: Path, threads: int) -> Prepared:
        """Compiles ahead of time, in a process of its own; what was compiled before may be kept."""
        ...

    def load(self, case: Case, folder: Path, threads: int) -> Loaded:
        """Loads what `prepare` left, or compiles."""
        ...


def runtime(name: str) -> Runtime:
    """The runtime's module."""
    found: Any = importlib.import_module(f"benchmarks.peers.runtimes.{RUNTIMES[name]}")
    return cast("Runtime", found)


def counts(name: str, case: Case) -> bool:
    """Whether the runtime is a peer for the ratio.

    Beside ours in bfloat16 that is OpenVINO as it comes, and beside ours for AVX2 whatever can be kept to that.
    """
    if case.target is not None and name not in _CAPS:
        return False
    return runtime(name).COUNTS if case.precision is None else name == "openvino-bf16"


def environment(name: str, case: Case) -> dict[str, str]:
    """The variables of the runtime's processes."""
    return dict(_CAPS.get(name, {})) if case.target is not None else {}

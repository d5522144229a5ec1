"""What the graph passes did to a module, as JSON values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from relaxc.service.rounding import Rounding

__all__ = ["LayoutDecision", "MemoryReport", "OptimizeReport"]


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The layout of convolutions, and why; `moved` counts the elements that transposes move at run time."""

    chosen: str
    reason: str
    moved_before: int = 0
    moved_after: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory that one run of `main` plans for its intermediate values, weights and inputs not counted.

    `planned_bytes` is the sum of the planned storages, all live for the whole run: the peak. Where a shape
    is symbolic, sizes are at the upper bounds of the dims; storages whose size depends on dims without one
    (`unbounded`) are allocated as the run goes and not counted (`dynamic_storages` of them).
    """

    planned_bytes: int
    storages: int
    dynamic_storages: int = 0
    unbounded: tuple[str, ...] = ()
    bytes_at_upper_bounds: int | None = None
    """What a plan at the upper bounds would take, where that was too much to be made."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {**asdict(self), "unbounded": list(self.unbounded)}


@dataclass(slots=True)
class OptimizeReport:
    """Filled by the passes as they run."""

    precision: str = "as the model"
    fusions: dict[str, int] = field(default_factory=dict)
    """How many kernels compute each chain of operators: `conv2d + bias + relu` → 16; single operators too."""
    computes: dict[str, str] = field(default_factory=dict)
    """The chain of each fused PrimFunc, by its name."""
    graph: dict[str, Any] = field(default_factory=dict)
    """What `kernel_graph` found: which call reads what which other wrote."""
    kernel_calls: int = 0
    """Calls of PrimFuncs in one run of `main`."""
    prim_funcs: int = 0
    weights: int = 0
    weight_bytes: int = 0
    layout: LayoutDecision = field(default_factory=lambda: LayoutDecision("NCHW", "not tried at this -O"))
    rounding: Rounding | None = None
    """What `--weights` rounded; None without it."""
    state: dict[str, str] = field(default_factory=dict)
    """What happens to each state in a call: it is written `in place`, or gets a buffer, and why."""
    plugins: tuple[str, ...] = ()
    triton_declined: dict[str, str] = field(default_factory=dict)
    """Why a Triton kernel of a plugin is not what computes some match on a CUDA device, by its name."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        data = {**asdict(self), "plugins": list(self.plugins)}
        del data["rounding"]
        if self.rounding is not None:
            data["rounding"] = self.rounding.to_dict()
        for name in ("triton_declined", "state"):
            if not data[name]:
                del data[name]
        return data

    @property
    def fused(self) -> dict[str, int]:
        """The kernels of more than one operator."""
        return {name: count for name, count in self.fusions.items() if " + " in name}

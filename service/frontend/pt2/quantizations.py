"""What a reference does in place of a program's quantizations: it moves what they round, or it does not round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

__all__ = ["QUANTIZE", "Moved", "Quantizations", "Unrounded", "concerns", "quantized_ranges", "quantizes"]

_FAMILY = "quantized_decomposed."
QUANTIZE = f"{_FAMILY}quantize_"
_DEQUANTIZE = f"{_FAMILY}dequantize_"

Call = Callable[[tuple[Any, ...]], Any]
"""The operator, with other arguments."""


def quantizes(target: str, arguments: Iterable[Any]) -> bool:
    """Return whether an operator rounds to codes: it quantizes with a scale, or casts to an 8-bit float."""
    import torch

    return target.startswith(QUANTIZE) or ("to" in target and torch.float8_e4m3fn in arguments)


def concerns(target: str, arguments: Iterable[Any]) -> bool:
    """Return whether an operator is one that `Quantizations` stand for: it quantizes, or gives back what codes mean."""
    return target.startswith(_FAMILY) or quantizes(target, arguments)


def quantized_ranges(exported: Any) -> dict[str, tuple[float, float]]:
    """Return input of a program → the range of what quantizes it by one scale."""
    given, found = set(exported.graph_signature.user_inputs), dict[str, tuple[float, float]]()
    for node in exported.graph.nodes:
        if str(node.target).startswith(f"{QUANTIZE}per_tensor.default") and str(node.args[0]) in given:
            scale, zero, low, high = (float(each) for each in node.args[1:5])
            found.setdefault(str(node.args[0]), ((low - zero) * scale, (high - zero) * scale))
    return found


class Quantizations(Protocol):
    """Stands for the operators that `concerns` names; `given` where the program does not compute the first argument."""

    def __call__(self, target: str, args: tuple[Any, ...], call: Call, *, given: bool) -> Any:
        """What the operator gives instead."""
        ...


class Moved:
    """What a quantization rounds is off by up to `by` of itself and of its tensor's mean size, anew in each run; what
    is given is rounded as it is.
    """

    def __init__(self, seed: int, by: float) -> None:
        import torch

        self.by = by
        self.draw = torch.Generator().manual_seed(seed)

    def __call__(self, target: str, args: tuple[Any, ...], call: Call, *, given: bool) -> Any:
        import torch

        if given or (target.startswith(_FAMILY) and not target.startswith(QUANTIZE)):
            return call(args)
        size = _saturated(target, args).abs()
        by = self.by * (2 * torch.rand(size.shape, generator=self.draw) - 1)
        return call((args[0] + by * (size + size.mean()), *args[1:]))


class Unrounded:
    """Quantizations saturate, and what dequantizes their codes gives the values as they were."""

    def __init__(self) -> None:
        self.real: dict[int, tuple[Any, Any]] = {}

    def __call__(self, target: str, args: tuple[Any, ...], call: Call, *, given: bool) -> Any:
        if target.startswith(QUANTIZE):
            codes = call(args)
            self.real[id(codes)] = codes, _saturated(target, args)  # held, so that no other tensor has its id
            return codes
        held = self.real.get(id(args[0])) if target.startswith(_DEQUANTIZE) else None
        return call(args) if held is None else held[1]


def _saturated(target: str, args: tuple[Any, ...]) -> Any:
    """What is quantized, within what the codes of one scale can stand for."""
    import torch

    if "per_tensor" not in target:
        return args[0]
    x, scale, zero, low, high = args[:5]
    return torch.clamp(x, min=(low - float(zero)) * float(scale), max=(high - float(zero)) * float(scale))

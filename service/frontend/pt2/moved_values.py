"""What moves every value that a program computes in floats a little, anew in each run (`Move.VALUES`)."""

from __future__ import annotations

from typing import Any

__all__ = ["MovedValues"]

_MOST = 1e30
"""Of a value that moves by a share of itself: fillers of -3.4e38 are to be no infinities."""

_MOVEMENT = {"alias", "cat", "chunk", "clone", "contiguous", "detach", "detach_", "diagonal", "embedding", "expand"}
_MOVEMENT |= {
    "flatten",
    "gather",
    "getitem",
    "index",
    "index_select",
    "lift_fresh_copy",
    "movedim",
    "permute",
    "repeat",
}
_MOVEMENT |= {"reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "t", "to", "transpose"}
_MOVEMENT |= {"unbind", "unsafe_split", "unsqueeze", "view", "_to_copy", "_unsafe_view"}
"""Operators that choose among the values that they are given, or are views of them, and compute none."""

_CANCELS = {"celu", "elu", "expm1", "gelu", "log1p", "log_sigmoid", "log_softmax", "mish", "selu", "softplus"}
"""Operators within which 1 or so is added and taken away: an exact result near 0 is off by a unit of 1."""


class MovedValues:
    """Moves values by up to `by` of themselves, each element by a number of its own."""

    def __init__(self, seed: int, by: float) -> None:
        import torch

        self.by, self.draw = by, torch.Generator().manual_seed(seed)

    def given(self, value: Any) -> Any:
        """Return a weight or an input moved; a number alone is none."""
        return self._near(value) if _is_float(value) and value.numel() > 1 else value

    def before(
        self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what an operator is to read: of a convolution over windows an image that moves by a share of its
        largest value, as Winograd's algorithm spreads over the image what it rounds.
        """
        if "conv" not in target or len(args) < 2 or not all(_is_float(each) for each in args[:2]):
            return args, kwargs
        image, weight = args[:2]
        if image.dim() < 3 or all(size == 1 for size in weight.shape[2:]):
            return args, kwargs
        size = image.abs().amax(dim=tuple(range(2, image.dim())), keepdim=True)
        return (self._near(image, size), *args[1:]), kwargs

    def behind(self, target: str, value: Any) -> Any:
        """Return what an operator gave, moved; one in place has it moved in place."""
        name = _name(target)
        if name in _MOVEMENT:
            return value
        if isinstance(value, list | tuple):
            return tuple(self._given_by(name, each) for each in value)
        return self._given_by(name, value)

    def _given_by(self, name: str, value: Any) -> Any:
        if not _is_float(value):
            return value
        moved = self._near(value, value.abs() + 1 if name in _CANCELS else None)
        return value.copy_(moved) if name.endswith("_") else moved

    def _near(self, value: Any, size: Any = None) -> Any:
        import torch

        wide = value.double() if value.dtype == torch.float64 else value.float()
        size = wide.clamp(-_MOST, _MOST) if size is None else size.to(wide.dtype)
        by = self.by * (2 * torch.rand(wide.shape, generator=self.draw, dtype=wide.dtype) - 1)
        return (wide + by * size).to(value.dtype)


def _is_float(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )


def _name(target: str) -> str:
    """`aten.view.default` → `view`; the text of `operator.getitem` → `getitem`."""
    parts = target.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else target.rpartition(" ")[2].strip("<>")

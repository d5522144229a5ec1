"""A run of a program in double precision: float64 wherever it has, makes or names float32."""

from __future__ import annotations

from typing import Any

__all__ = ["InDouble", "is_float32"]


class InDouble:
    """Makes values of a run float64 that are float32; other dtypes stay, as what is rounded to them is the model's."""

    def given(self, value: Any) -> Any:
        """Return a weight or an input in float64."""
        return value.double() if is_float32(value) else value

    def before(
        self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments that name float64 where they named float32."""
        import torch
        from torch.utils import _pytree as pytree

        del target
        renamed = pytree.tree_map(lambda each: torch.float64 if each is torch.float32 else each, (args, kwargs))
        return (*renamed,)  # the two that were given

    def behind(self, target: str, value: Any) -> Any:
        """Return results in float64: an operator that names no dtype makes float32 of its own."""
        from torch.utils import _pytree as pytree

        del target
        return pytree.tree_map(self.given, value)


def is_float32(value: Any) -> bool:
    """Return whether it is a tensor of float32."""
    import torch

    return isinstance(value, torch.Tensor) and value.dtype == torch.float32

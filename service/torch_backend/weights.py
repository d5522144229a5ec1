"""Whether weights are still those that an artifact was made with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Weights"]

_SAMPLE = 256
"""The most elements of a weight that are compared at a call."""


class Weights:
    """Weights as they are when this is made.

    Which tensors they are, where they lie and how many writes torch has counted tell most changes. Not all: a batch
    norm in training writes its statistics uncounted, and so does what goes through `.data`. So some elements of each
    are held too, spread over all of it.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._held = [(each, each._version, each.data_ptr()) for each in tensors]
        self._samples: defaultdict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for each in tensors:
            if each.numel():
                self._samples[each.dtype].append(_sample(each.detach()))
        self._read = self._elements()

    def are(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether these are they, and none was seen to change."""
        return (
            len(tensors) == len(self._held)
            and all(
                each is held and each._version == version and each.data_ptr() == place
                for each, (held, version, place) in zip(tensors, self._held, strict=True)
            )
            and all(map(torch.equal, self._elements(), self._read))
        )

    def _elements(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return [torch.cat(views).view(torch.uint8) for views in self._samples.values()]


def _sample(weight: Any) -> torch.Tensor:
    """A view of elements all over the memory that a weight takes up; an odd step meets all columns of a matrix."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    step = -(-reach // _SAMPLE) | 1
    found: torch.Tensor = weight.as_strided((-(-reach // step),), (step,))
    return found

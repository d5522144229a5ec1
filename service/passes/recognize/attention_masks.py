"""Masks of attention that are known at compile time: those that hide nothing, and causal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import tirx

from relaxc.schedules.ir import tir
from relaxc.service.passes.common.constants import Array
from relaxc.service.passes.common.rewrite import Scope
from relaxc.service.passes.common.views import View, broadcast, look_through
from relaxc.service.passes.recognize.attention_logits import Step, choose
from relaxc.service.passes.recognize.attention_operands import Axes
from relaxc.service.passes.recognize.constant_masks import mask_value
from relaxc.service.passes.simplify.simplify_shapes import shape_of

__all__ = ["Causal", "simplified"]

_HIDDEN = -1e30
"""A logit under which a key has no weight, whatever the others are."""


class Causal:
    """`n <= m + offset ? score : -∞`"""

    by_position = True

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __call__(self, score: Any, *, m: Any, n: Any) -> Any:
        """Return the score, or -∞ where key `n` comes after what query `m` may see."""
        return tirx.Select(n <= m + self.offset, score, tirx.const(float("-inf"), "float32"))


def simplified(steps: Sequence[Step], axes: Axes, scope: Scope) -> list[Step]:
    """Return the steps without constant masks that hide nothing, and a causal one, if there is, as a comparison, last.

    Two masks in one, `a & b`, are two. Where what is hidden gets a finite number, each query must see a key.
    """
    kept: list[Step] = []
    causal: list[Causal] = []
    for step in [part for given in steps for part in _parts(given, axes, scope)]:
        seen = _seen(step, axes, scope)
        offset = None if seen is None else _offset(seen)
        hides_all = seen is not None and not seen.any(axis=1).all()
        finite = step.chooses is None or step.chooses[1] != float("-inf")
        if seen is None or (hides_all and finite):
            kept.append(step)
        elif seen.all():
            continue
        elif offset is None or causal:
            kept.append(step)
        else:
            causal.append(Causal(offset))
    return kept + [Step(each, ()) for each in causal]


def _parts(step: Step, axes: Axes, scope: Scope) -> list[Step]:
    """One step for each part of a mask `a & b` that keeps scores where it is true."""
    if step.chooses is None or not step.chooses[0]:
        return [step]
    masks = [mask for mask in step.masks if isinstance(mask, View)]
    mask = look_through(masks[0], scope, axes.bounds)
    both = scope.call(mask.source, "relax.logical_and")
    if both is None:
        return [replace(step, masks=(mask,))]
    found = []
    for arg in both.args:
        part = View(arg, broadcast(mask.index, shape_of(arg) or []))
        found += _parts(Step(choose(*step.chooses), (part,), chooses=step.chooses), axes, scope)
    return found


def _seen(step: Step, axes: Axes, scope: Scope) -> Array | None:
    """Which keys each query sees, `[m, n]`, if the step is a constant mask that is the same for the whole batch."""
    mask = step.masks[0] if len(step.masks) == 1 else None
    if not isinstance(mask, View) or not (step.adds or step.chooses):
        return None
    mask = look_through(mask, scope, axes.bounds)
    array = mask_value(mask.source, scope)
    if array is None:
        return None
    if step.chooses:
        if step.chooses[1] > _HIDDEN:
            return None
        shown = array == step.chooses[0]
    else:
        shown = array == 0
        if not (shown | (array <= _HIDDEN)).all():
            return None
    return _by_position(shown, mask, axes)


def _by_position(shown: Array, mask: View, axes: Axes) -> Array | None:
    queries, keys = (tir.as_int(axes.bounds[var]) for var in (axes.m, axes.n))
    if queries is None or keys is None:
        return None
    if shown.all():
        return np.ones((queries, keys), bool)
    if shown.ndim < 2 or any(own not in (1, all_) for own, all_ in zip(shown.shape[-2:], (queries, keys), strict=True)):
        return None
    if not tir.same_var(mask.index[-2], axes.m) or not tir.same_var(mask.index[-1], axes.n):
        return None
    flat = np.broadcast_to(shown, (*shown.shape[:-2], queries, keys)).reshape(-1, queries, keys)
    return flat[0] if (flat == flat[0]).all() else None


def _offset(seen: Array) -> int | None:
    """The o of `n <= m + o`, if that is what is seen."""
    queries, keys = seen.shape
    last = seen[-1].sum()
    offset = int(last) - queries if last < keys else int(seen[0].sum()) - 1
    found = np.arange(keys) <= np.arange(queries)[:, None] + offset
    return offset if (found == seen).all() else None

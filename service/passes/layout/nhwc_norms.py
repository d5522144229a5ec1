"""Group norms of images in NHWC."""

from __future__ import annotations

from functools import partial
from math import prod

from tvm import relax

from relaxc.schedules.cuda.conv.compute import VECTOR
from relaxc.schedules.cuda.groups.compute import group_norm
from relaxc.service.passes.common.rewrite import static_shape
from relaxc.service.passes.layout.nhwc_images import NhwcImages, Rule
from relaxc.service.passes.precision.dtypes import is_widening

__all__ = ["RULES"]

_MAX_GROUP = 256
"""Channels of a group."""


def _group_norm(images: NhwcImages, call: relax.Call) -> relax.Var | None:
    """A widened image is read in its 16 bits, and one that nothing else reads is stored so."""
    data, gamma, beta = call.args
    attrs, shape = call.attrs, static_shape(data)
    if shape is None or len(shape) != 4 or int(attrs.channel_axis) % 4 != 1 or shape[1] % VECTOR:
        return None
    width, axes = shape[1] // int(attrs.num_groups), {int(axis) % 4 for axis in attrs.axes}
    if axes - {1} != {2, 3} or width % 2 or width > _MAX_GROUP or prod(shape) >= 1 << 31:
        return None
    bound = images.binding(data) if data not in images.last else None
    image = images.image(bound.args[0] if bound is not None and is_widening(bound) else data)
    function = partial(group_norm, groups=int(attrs.num_groups), epsilon=float(attrs.epsilon))
    image = images.narrow.get(image, image)
    if data in images.last and images.low and images.reads[data] == 1 and str(image.ty.dtype) == "float32":
        image = images.cast(image, images.low)
    operands = (image, images.visited(gamma), images.visited(beta))
    return images.cast(images.te(function, *operands, name="group_norm"), str(call.ty.dtype))


RULES: dict[str, Rule] = {"relax.nn.group_norm": _group_norm}

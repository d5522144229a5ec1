"""Template `cuda.group_norm_sm90`: group norms of NHWC images, read once."""

from __future__ import annotations

from itertools import product
from math import ceil, lcm
from typing import Any

from schedules.cuda.common.kernel import TextKernel
from schedules.cuda.common.template import HopperTemplate
from schedules.cuda.groups.form import Groups, match
from schedules.cuda.rows.text import source
from schedules.hardware import Gpu
from schedules.template import Choices, Declined, Parameters

__all__ = ["GroupNormSm90"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_MOST_HELD = 48
"""Elements of an image that a thread holds, at most, each in a register."""
_OTHER_REGISTERS = 44
_BYTES_PER_US = 2.8e6
"""Of the device's memory."""
_SM_BYTES_PER_US = 6e4
"""That one SM reads and writes, at most."""
_BARRIERS_US = 1.0
"""What one of the sums takes with the barriers of its cluster, and about as much the first load and the last store."""


class GroupNormSm90(HopperTemplate[Groups]):
    """`out[n, p, c] = f(x[n, p, c], reductions over n, all p and the group of c of g(x), …)`, one after the other.

    Bounded by the image read and the result written, once each: pixels beyond 48 elements a thread are read again for
    every reduction, mostly from L2. Parameters: the CTAs of a `cluster` share a `chunk` of channels of an image, each
    a slab of its pixels; `threads` of a CTA, at most.
    """

    name = "cuda.group_norm_sm90"
    version = 1

    def match(self, func: Any) -> Groups | Declined:
        """See `HopperTemplate`."""
        found = match(func)
        if not isinstance(found, Declined) and not _choices(found)["chunk"]:
            return Declined("its groups are wider than a block reads at a time")
        return found

    def choices_of(self, form: Groups, gpu: Gpu) -> Choices:
        """See `HopperTemplate`."""
        return _choices(form)

    def default_of(self, form: Groups, gpu: Gpu) -> Parameters:
        """See `HopperTemplate`."""
        space = _choices(form)
        points = [dict(zip(space, point, strict=True)) for point in product(*space.values())]
        return min(points, key=lambda point: _microseconds(form, point, gpu))

    def kernel_of(self, form: Groups, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `HopperTemplate`."""
        return _kernel(form, parameters)


def _vector(form: Groups) -> int:
    """The elements of 16 bytes."""
    return 16 // _BYTES[str(form.x.dtype)]


def _choices(form: Groups) -> Choices:
    """Chunks are whole groups in whole vectors, of which a CTA has a thread for each."""
    least = lcm(form.width, _vector(form))
    chunks = [c for c in range(least, form.channels + 1, least) if form.channels % c == 0 and c // _vector(form) <= 256]
    return {"chunk": tuple(chunks), "cluster": (1, 2, 4, 8), "threads": (256, 384, 512)}


def _sizes(form: Groups, point: Parameters) -> tuple[int, int, int]:
    """Return the pixels of a CTA, those that are read at a time, and how many times."""
    slab = ceil(form.pixels / point["cluster"])
    lines = max(1, min(point["threads"] // (point["chunk"] // _vector(form)), slab))
    return slab, lines, ceil(slab / lines)


def _microseconds(form: Groups, point: Parameters, gpu: Gpu) -> float:
    """What memory takes, and what is not behind it: barriers, unless other CTAs on the SM go on meanwhile."""
    slab, _, turns = _sizes(form, point)
    read, written = (_BYTES[str(buffer.dtype)] for buffer in (form.x, form.out))
    held = min(turns * _vector(form), _MOST_HELD)
    again = max(0.0, 1 - held / (turns * _vector(form))) * form.sums
    piece = point["chunk"] * read
    sectors = (ceil(piece / 32) + (piece % 32 > 0)) * 32 / piece * (1 + 32 / piece)
    ctas = form.images * form.channels // point["chunk"] * point["cluster"]
    registers = _OTHER_REGISTERS + held
    per_sm = max(1, min(gpu.registers_per_sm // (registers * point["threads"]), gpu.threads_per_sm // point["threads"]))
    of_cta = slab * point["chunk"] * (read * (1 + again) * sectors + written)
    memory = max(ctas * of_cta / _BYTES_PER_US, ceil(ctas / gpu.sms) * of_cta / _SM_BYTES_PER_US)
    waiting = _BARRIERS_US * (1 + form.sums * (1 if point["cluster"] > 1 else 0.5))
    return float(memory + waiting + waiting * (ceil(ctas / (gpu.sms * per_sm)) - 1) / per_sm)


def _kernel(form: Groups, point: Parameters) -> TextKernel:
    _, lines, turns = _sizes(form, point)
    vector, chunk, cluster = _vector(form), point["chunk"], point["cluster"]
    threads = ceil(lines * (chunk // vector) / 32) * 32
    numbers = {
        "IMAGES": form.images, "PIXELS": form.pixels, "CHANNELS": form.channels, "WIDTH": form.width, "VECTOR": vector,
        "CHUNK": chunk, "CLUSTER": cluster, "THREADS": threads, "LINES": lines,
        "HELD": min(turns, _MOST_HELD // vector),
    }  # fmt: skip
    grid = form.images * (form.channels // chunk) * cluster
    shared = form.sums * 4 * ((lines + 1) * chunk // 2 + 2 * (chunk // form.width))
    return TextKernel(
        source(form, numbers, "groups"),
        (),
        (form.x, form.out, *form.operands),
        grid,
        cluster,
        threads,
        max(256, shared),
    )

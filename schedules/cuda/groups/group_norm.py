"""Template `cuda.group_norm`: group norms of NHWC images, read once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, lcm, log2
from typing import Any

from schedules.cuda.common.kernel import TextKernel
from schedules.cuda.common.template import AmpereTemplate
from schedules.cuda.groups.form import Groups, match
from schedules.cuda.rows.text import source
from schedules.hardware import Gpu
from schedules.template import Choices, Declined, Parameters

__all__ = ["GroupNorm"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_VECTOR_BYTES = 16
_THREADS = (256, 512)
"""Of a CTA by default: where there are more CTAs than SMs, and where there are not."""
_REGISTERS = 64
"""Of a thread, about."""
_RESERVED_BYTES = 1024
"""Shared memory of a CTA that is the system's."""

# What follows is fitted to 60 points of seven norms, timed on an H100.
_PAST_DATA_SHEET = 3.8 / 3.35
"""What came from memory, where nothing waits, to what the data sheet says: some of it is in the cache yet."""
_START_US = 1.7
_WAVE_US = 4.1
"""What a wave of CTAs takes beside its copies: the first load, what a cluster exchanges, the last store."""
_TURN_US = 0.32
"""For 16 bytes of each of 1,024 threads of an SM."""
_DOUBLING_US = -0.27
"""For each doubling of a cluster."""
_LATER = 0.56
"""Of a wave's time, where another one was before it."""


class GroupNorm(AmpereTemplate[Groups]):
    """`out[n, p, c] = f(x[n, p, c], mean and variance over n, all p and the group of c of g(x), …)`.

    Bounded by the image read and the result written, once each. Parameters: the CTAs of a `cluster` share a `chunk` of
    channels of an image, each a slab of its pixels, which it holds in shared memory; `threads` of a CTA, at most;
    `share` CTAs that an SM shall hold: what does not fit in that part of shared memory is read twice.
    """

    name = "cuda.group_norm"
    version = 3

    def match(self, func: Any) -> Groups | Declined:
        """See `HopperTemplate`."""
        found = match(func)
        if not isinstance(found, Declined) and not _chunks(found):
            return Declined("its groups are wider than a block reads at a time")
        return found

    def choices_of(self, form: Groups, gpu: Gpu) -> Choices:
        """See `HopperTemplate`."""
        return _choices(form, gpu)

    def default_of(self, form: Groups, gpu: Gpu) -> Parameters:
        """See `HopperTemplate`: many threads where an SM has one CTA, else more CTAs."""
        space = _choices(form, gpu)
        slabs = [
            _Slab(form, chunk, cluster, threads, 1)
            for chunk, cluster, threads in product(space["chunk"], space["cluster"], _THREADS)
        ]
        fitting = [each for each in slabs if each.threads == _THREADS[each.tasks * each.cluster <= gpu.sms]]
        return min(fitting, key=lambda slab: slab.microseconds(gpu)).parameters()

    def kernel_of(self, form: Groups, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `HopperTemplate`."""
        return _kernel(form, _Slab(form, **parameters), gpu)


def _vector(form: Groups) -> int:
    """The elements of 16 bytes."""
    return _VECTOR_BYTES // _BYTES[str(form.x.dtype)]


def _choices(form: Groups, gpu: Gpu) -> Choices:
    clusters = (1, 2, 4, 8) if gpu.has_clusters else (1,)
    return {"chunk": _chunks(form), "cluster": clusters, "threads": (256, 384, 512), "share": (1, 2, 3, 4)}


def _chunks(form: Groups) -> tuple[int, ...]:
    """Whole groups in whole vectors, of which a CTA has a thread for each."""
    least = lcm(form.width, _vector(form))
    fitting = range(least, form.channels + 1, least)
    return tuple(c for c in fitting if form.channels % c == 0 and c // _vector(form) <= 256)


@dataclass(frozen=True)
class _Slab:
    """What a CTA has: `chunk` channels of those pixels of an image that it does not leave to others of the cluster."""

    form: Groups
    chunk: int
    cluster: int
    threads: int
    share: int

    def parameters(self) -> Parameters:
        """Return the parameters by name."""
        return {"chunk": self.chunk, "cluster": self.cluster, "threads": self.threads, "share": self.share}

    @property
    def pieces(self) -> int:
        """Vectors of a pixel."""
        return self.chunk // _vector(self.form)

    @property
    def pixels(self) -> int:
        """Pixels of the CTA."""
        return ceil(self.form.pixels / self.cluster)

    @property
    def turns(self) -> int:
        """Pixels of a thread."""
        return ceil(self.pixels / max(1, min(self.threads // self.pieces, self.pixels)))

    @property
    def lines(self) -> int:
        """Pixels that are read at a time: no more than those turns need."""
        return ceil(self.pixels / self.turns)

    @property
    def whole_threads(self) -> int:
        """Threads in whole warps."""
        return ceil(self.lines * self.pieces / 32) * 32

    @property
    def fixed_bytes(self) -> int:
        """Shared memory beside the pixels: what threads, warps and CTAs add up, and the sums."""
        groups = self.chunk // self.form.width
        parts = max(1, self.whole_threads // 32 // groups) * groups * self.cluster
        return ceil(self.lines * self.chunk // 2 / 2) * 16 + parts * 16 + groups * 8

    def held(self, gpu: Gpu) -> int:
        """Return the pixels of a thread that shared memory holds."""
        room = min(gpu.shared_bytes_of_code, gpu.shared_bytes_per_sm // self.share - _RESERVED_BYTES)
        return max(1, min(self.turns, (room - self.fixed_bytes) // self.turn_bytes))

    def shared_bytes(self, gpu: Gpu) -> int:
        """Return the shared memory of a CTA."""
        return self.held(gpu) * self.turn_bytes + self.fixed_bytes

    @property
    def turn_bytes(self) -> int:
        """Bytes that the threads read at a time."""
        return self.lines * self.pieces * _VECTOR_BYTES

    @property
    def tasks(self) -> int:
        """Chunks of images."""
        return self.form.images * (self.form.channels // self.chunk)

    def per_sm(self, gpu: Gpu) -> int:
        """Return the CTAs that an SM holds."""
        by_memory = gpu.shared_bytes_per_sm // (self.shared_bytes(gpu) + _RESERVED_BYTES)
        by_threads = min(gpu.threads_per_sm, gpu.registers_per_sm // _REGISTERS) // self.whole_threads
        return max(1, min(by_memory, by_threads))

    def microseconds(self, gpu: Gpu) -> float:
        """Return what memory takes, and the waves of CTAs, which wait and compute: all but the first beside another."""
        form = self.form
        read, written = (_BYTES[str(buffer.dtype)] for buffer in (form.x, form.out))
        piece, ctas = self.chunk * read, self.tasks * self.cluster
        sectors = (ceil(piece / 32) + (piece % 32 > 0)) * 32 / piece
        again = (1 - self.held(gpu) / self.turns) / 2
        bytes_per_us = _PAST_DATA_SHEET * gpu.memory_bytes_per_second * 1e-6
        memory = ctas * self.pixels * self.chunk * (read * (sectors + again) + written) / bytes_per_us
        threads = min(self.per_sm(gpu), 2 * ceil(ctas / gpu.sms)) * self.whole_threads
        turns = self.turns * _vector(form) / 8 * max(1.0, threads / 1024)
        wave = _WAVE_US + _TURN_US * turns + _DOUBLING_US * log2(self.cluster)
        waves = ceil(self.tasks / (gpu.clusters(self.cluster) * self.per_sm(gpu)))
        return _START_US + memory + wave * (1 + (waves - 1) * _LATER)


def _kernel(form: Groups, slab: _Slab, gpu: Gpu) -> TextKernel:
    numbers = {
        "IMAGES": form.images, "PIXELS": form.pixels, "CHANNELS": form.channels, "WIDTH": form.width,
        "VECTOR": _vector(form), "CHUNK": slab.chunk, "CLUSTER": slab.cluster, "THREADS": slab.whole_threads,
        "LINES": slab.lines, "HELD": slab.held(gpu),
    }  # fmt: skip
    return TextKernel(
        source=source(form, numbers, "groups"),
        maps=(),
        pointers=(form.x, form.out, *form.operands),
        grid=slab.tasks * slab.cluster,
        cluster=slab.cluster,
        threads=slab.whole_threads,
        shared_bytes=slab.shared_bytes(gpu),
        per_sm=slab.per_sm(gpu),
    )

"""What a CTA of `cuda.group_norm` has of an image, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from relaxc.schedules.cuda.groups.form import Groups
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.template import Parameters

__all__ = ["Slab", "moved_bytes", "threads_of", "vector_of"]

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_VECTOR_BYTES = 16
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


def vector_of(form: Groups) -> int:
    """Return the elements of 16 bytes."""
    return _VECTOR_BYTES // _BYTES[str(form.x.dtype)]


def moved_bytes(form: Groups) -> int:
    """Return what is read and written for an element."""
    return sum(_BYTES[str(buffer.dtype)] for buffer in (form.x, form.out))


def threads_of(gpu: Gpu) -> int:
    """Return the threads that an SM has registers for."""
    return min(gpu.threads_per_sm, gpu.registers_per_sm // _REGISTERS)


@dataclass(frozen=True)
class Slab:
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
        return self.chunk // vector_of(self.form)

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
        return ceil(self.lines * self.chunk // 2 / 2) * 16 + self.table_bytes + groups * 8

    @property
    def table_bytes(self) -> int:
        """What a CTA gets of its cluster: the parts of each warp that adds up a group, or of one."""
        groups = self.chunk // self.form.width
        return max(1, self.whole_threads // 32 // groups) * groups * self.cluster * 16

    def held(self, gpu: Gpu) -> int:
        """Return the pixels of a thread that shared memory holds."""
        return max(1, min(self.turns, (self.room(gpu) - self.fixed_bytes) // self.turn_bytes))

    def room(self, gpu: Gpu) -> int:
        """Return the shared memory that a CTA may have where `share` are on an SM."""
        return min(gpu.shared_bytes_of_code, gpu.shared_bytes_per_sm // self.share - _RESERVED_BYTES)

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
        return max(1, min(by_memory, threads_of(gpu) // self.whole_threads))

    def microseconds(self, gpu: Gpu) -> float:
        """Return what memory takes, and the waves of CTAs, which wait and compute: all but the first beside another."""
        ctas = self.tasks * self.cluster
        memory = self.memory_microseconds(gpu, self.held(gpu) / self.turns)
        threads = min(self.per_sm(gpu), 2 * ceil(ctas / gpu.sms)) * self.whole_threads
        turns = self.turns * vector_of(self.form) / 8 * max(1.0, threads / 1024)
        wave = _WAVE_US + _TURN_US * turns + _DOUBLING_US * log2(self.cluster)
        waves = ceil(self.tasks / (gpu.clusters(self.cluster) * self.per_sm(gpu)))
        return _START_US + memory + wave * (1 + (waves - 1) * _LATER)

    def memory_microseconds(self, gpu: Gpu, held: float, past_data_sheet: float = _PAST_DATA_SHEET) -> float:
        """Return what memory takes where nothing waits, and what is not held is read again."""
        read, written = (_BYTES[str(buffer.dtype)] for buffer in (self.form.x, self.form.out))
        piece = self.chunk * read
        sectors = (ceil(piece / 32) + (piece % 32 > 0)) * 32 / piece
        again = (1 - held) / 2
        bytes_per_us = past_data_sheet * gpu.memory_bytes_per_second * 1e-6
        return (
            self.tasks * self.cluster * self.pixels * self.chunk * (read * (sectors + again) + written) / bytes_per_us
        )

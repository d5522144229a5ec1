"""Template `cuda.group_norm`: group norms of NHWC images, read once."""

from __future__ import annotations

from itertools import product
from math import lcm
from typing import Any

from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.groups.form import Groups, match
from relaxc.schedules.cuda.groups.ring import Ring
from relaxc.schedules.cuda.groups.slab import Slab, vector_of
from relaxc.schedules.cuda.rows.text import source
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["GroupNorm"]

_THREADS = (256, 512)
"""Of a CTA by default: where there are more CTAs than SMs, and where there are not."""
_TEAMS, _THREADS_OF_TEAM = 2, 320
"""Of a CTA that stays, by default."""
_GAIN = 0.95
"""What a ring takes by arithmetic, at most, of what slabs by themselves do, so that it is the default."""


class GroupNorm(TextTemplate[Groups]):
    """`out[n, p, c] = f(x[n, p, c], mean and variance over n, all p and the group of c of g(x), …)`.

    Bounded by the image read and the result written, once each. Parameters: the CTAs of a `cluster` share a `chunk` of
    channels of an image, each a slab of its pixels, which it holds in shared memory; `threads` of a CTA, at most;
    `share` CTAs that an SM shall hold: what does not fit in that part of shared memory is read twice. With `teams`, so
    many of `threads` each, CTAs stay and bring slabs ahead into a ring, which holds them whole.
    """

    name = "cuda.group_norm"
    version = 4

    def match(self, func: Any) -> Groups | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if not isinstance(found, Declined) and not _chunks(found):
            return Declined("its groups are wider than a block reads at a time")
        return found

    def space(self, form: Groups, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return _choices(form, gpu)

    def default(self, form: Groups, gpu: Gpu) -> Parameters:
        """See `TextTemplate`: a ring where it gains; else many threads where an SM has one CTA, or more CTAs."""
        space = _choices(form, gpu)
        slabs = [
            Slab(form, chunk, cluster, threads, 1)
            for chunk, cluster, threads in product(space["chunk"], {1, 2, 4, 8} & {*space["cluster"]}, _THREADS)
        ]
        fitting = [each for each in slabs if each.threads == _THREADS[each.tasks * each.cluster <= gpu.sms]]
        best = min(fitting, key=lambda slab: slab.microseconds(gpu))
        slabs = [Slab(form, *both, _THREADS_OF_TEAM, 1) for both in product(space["chunk"], space["cluster"])]
        rings = [ring for slab in slabs if _TEAMS in space["teams"] and (ring := Ring(slab, _TEAMS, gpu)).holds_next]
        quick = [ring for ring in rings if ring.microseconds <= _GAIN * best.microseconds(gpu)]
        if quick:
            return min(quick, key=lambda ring: ring.microseconds).parameters()
        return {**best.parameters(), "teams": 0}

    def kernel_of(self, form: Groups, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        own = {name: value for name, value in parameters.items() if name != "teams"}
        slab, teams = Slab(form, **own), parameters["teams"]
        if not teams:
            return _kernel(slab, gpu)
        ring = Ring(slab, teams, gpu)
        return _ring_kernel(ring) if ring.fits else Declined("an SM does not hold the ring")


def _choices(form: Groups, gpu: Gpu) -> Choices:
    clusters = tuple(range(1, 9)) if gpu.has_clusters else (1,)
    return {
        "chunk": _chunks(form), "cluster": clusters, "threads": (256, 320, 384, 512), "share": (1, 2, 3, 4),
        "teams": (0, 1, 2, 3) if gpu.has_clusters else (0,),
    }  # fmt: skip


def _chunks(form: Groups) -> tuple[int, ...]:
    """Whole groups in whole vectors, of which a CTA has a thread for each."""
    least = lcm(form.width, vector_of(form))
    fitting = range(least, form.channels + 1, least)
    return tuple(c for c in fitting if form.channels % c == 0 and c // vector_of(form) <= 256)


def _numbers(slab: Slab, held: int) -> dict[str, int]:
    form = slab.form
    return {
        "IMAGES": form.images, "PIXELS": form.pixels, "CHANNELS": form.channels, "WIDTH": form.width,
        "VECTOR": vector_of(form), "CHUNK": slab.chunk, "CLUSTER": slab.cluster, "THREADS": slab.whole_threads,
        "LINES": slab.lines, "HELD": held,
    }  # fmt: skip


def _kernel(slab: Slab, gpu: Gpu) -> TextKernel:
    form = slab.form
    return TextKernel(
        source=source(form, _numbers(slab, slab.held(gpu)), "groups", "slab"),
        maps=(),
        pointers=(form.x, form.out, *form.operands),
        grid=slab.tasks * slab.cluster,
        cluster=slab.cluster,
        threads=slab.whole_threads,
        shared_bytes=slab.shared_bytes(gpu),
        per_sm=slab.per_sm(gpu),
    )


def _ring_kernel(ring: Ring) -> TextKernel:
    slab, form = ring.slab, ring.slab.form
    numbers = _numbers(slab, slab.turns) | {"STAGES": ring.stages, "TEAMS": ring.teams, "CLUSTERS": ring.clusters}
    return TextKernel(
        source=source(form, numbers, "groups", "ring"),
        maps=(),
        pointers=(form.x, form.out, *form.operands),
        grid=ring.clusters * slab.cluster,
        cluster=slab.cluster,
        threads=ring.threads,
        shared_bytes=ring.shared_bytes,
        per_sm=slab.share,
    )

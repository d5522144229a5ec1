"""Template `cuda.reductions`: reductions over any axes, with what is made of them behind, in one pass over memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from relaxc.schedules.cuda.common.expression import Unsupported
from relaxc.schedules.cuda.common.kernel import TextKernel
from relaxc.schedules.cuda.common.sizes import at_least_one, guess
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.elementwise.elementwise import most_dividing
from relaxc.schedules.cuda.reductions.form import Reductions
from relaxc.schedules.cuda.reductions.reading import match
from relaxc.schedules.cuda.reductions.text import Members, at_call, buffers, sizes_of, source
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Expr, PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["AnyReductions"]

_VECTOR_BYTES = 16
_THREADS = (8, 16, 32, 64, 128, 256, 512, 1024)
_TEAMS = (1, 2, 4, 8, 16, 32)
_SHARERS = (1, 2, 4, 8)
_MOST_SHARERS = 64
"""The most blocks that each make all sums of one group."""
_REGISTER_BYTES = 128
"""What a thread may keep in registers; blocks of more than half of the most threads have half of it."""
_BATCH_BYTES = 64
"""What a thread reads before it uses the first byte."""
_LONG = 4
"""Vectors of a thread: where groups are many, no more threads have one."""
_READ_AGAIN = 8
"""How often an operand's element may be read by other groups, where terms are many: products do, and want tiles."""
_MANY_TERMS = 1 << 28
_MANY_TURNS = 1 << 20
"""Turns that a thread may take where only the call knows how many members there are."""


class AnyReductions(TextTemplate[Reductions]):
    """`out[g, m] = f(x[g, m], reductions over the members of g of terms, …)`, groups and members along any axes.

    Bounded by the operands read and the result written, once each, where a block keeps what it reads of a group.
    Parameters: `threads` of a group, `columns` of them along neighbouring groups where memory lies so; the `teams` of
    a block; `sharers`, the blocks that have a group, as a `cluster` or each with all sums.
    """

    name = "cuda.reductions"
    version = 1

    def match(self, func: PrimFunc) -> Reductions | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if isinstance(found, Declined):
            return found
        try:
            source(found, _members(found), [{} for _ in found.spaces], {})
        except Unsupported as error:
            return Declined(str(error))
        return found

    def outdone(self, form: Reductions, gpu: Gpu) -> str:
        """See `TextTemplate`: a product, whose operands are read by many groups, is for tiles."""
        terms = max(form.group_count * form.members_of(i) for i in range(len(form.spaces)))
        if terms >= _MANY_TERMS and _times_read(form) > _READ_AGAIN:
            return "its groups read the same operands, as products do"
        if form.group_count == 1 and not form.symbols and terms > 1 << 20:
            return "it is one long sum"
        return ""

    def space(self, form: Reductions, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        has_clusters = gpu.has_clusters and not form.symbols and not any("int" in each.dtype for each in form.sums)
        return {
            "threads": _THREADS,
            "columns": (4, 8, 16, 32) if form.across else (1,),
            "teams": _TEAMS,
            "sharers": tuple(range(1, 2 if form.symbols else _MOST_SHARERS + 1)),
            "cluster": (0, 1) if has_clusters else (0,),
        }

    def default(self, form: Reductions, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return _default(form, gpu, 1 in self.space(form, gpu)["cluster"])

    def kernel_of(self, form: Reductions, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        made = _Launch(form, _members(form), **parameters)
        return made.refusal(gpu) or made.kernel(gpu)


def _members(form: Reductions) -> list[Members]:
    """The spaces with as many lanes as 16 bytes of the widest that they read by neighbours."""
    given = buffers(form)
    lanes = [_lanes(form, i) for i in range(len(form.spaces))]
    if form.across:
        lanes = [min(lanes)] * len(lanes)
    return [Members(form, i, each, given) for i, each in enumerate(lanes)]


def _lanes(form: Reductions, space: int) -> int:
    of = form.spaces[space]
    if not of.form.axes or (not form.across and tir.as_int(of.members) == 1):
        return 1
    stores = space == 0 and (form.across or tir.as_int(of.members) != 1)
    if stores and tir.stride(of.form.place, of.form.axes[-1], of.form.bounds) != 1:
        return 1  # what is read by neighbours is not written so
    wide = [dtype_bytes(str(form.out.dtype))] if stores else []
    wide += [dtype_bytes(str(operand.buffer.dtype)) for operand in of.form.operands]
    return most_dividing(of.form.sizes[-1], min(_VECTOR_BYTES // max(wide, default=4), 8))


def _times_read(form: Reductions) -> float:
    """How often an element of an operand is read, of the one that is read most often."""
    found = 1.0
    for i, space in enumerate(form.spaces):
        for operand in space.form.operands:
            size = guess(tir.product(list(operand.buffer.shape)))
            found = max(found, form.group_count * form.members_of(i) / size) if form.terms_of(0) or size > 1 else found
    return found


@dataclass(frozen=True)
class _Launch:
    """A point of the space: what each block and thread has."""

    form: Reductions
    members: list[Members]
    threads: int
    columns: int
    teams: int
    sharers: int
    cluster: int

    @property
    def clustered(self) -> int:
        return self.sharers if self.cluster else 1

    @property
    def stride(self) -> int:
        """Vectors of members that a team has at a time."""
        return self.threads // self.columns

    @property
    def all_threads(self) -> int:
        return self.threads * self.teams

    @property
    def tiles(self) -> int:
        """Groups, or vectors of them times teams' columns."""
        if not self.form.across:
            return self.form.group_count
        vectors = guess(self.form.groups[-1]) // self.members[0].lanes
        return self.form.group_count // guess(self.form.groups[-1]) * ceil(vectors / self.columns)

    @property
    def grid(self) -> int | Expr:
        """The blocks, of which sizes that are known at the call decide."""
        outer, columns = sizes_of(self.form, self.members).values()
        tiles = tir.product([outer, tir.ceil_div(columns, self.columns)]) if self.form.across else outer
        return at_least_one(tir.product([tir.ceil_div(tiles, self.teams), self.sharers]))

    def vectors(self, space: int) -> int:
        """Return the vectors of members of a group."""
        count = self.form.members_of(space)
        return count if self.form.across else count // self.members[space].lanes

    def turns(self, space: int) -> int:
        """Return the vectors that a thread adds up."""
        return ceil(self.vectors(space) / (self.stride * self.clustered))

    def keeps(self, gpu: Gpu) -> int:
        """Return where the terms' operands are kept for the results: 0 nowhere, 1 in registers, 2 in shared memory."""
        shares_alike = self.sharers == self.clustered
        if not self.form.terms_of(0) or not shares_alike or not self.members[0].term_bytes:
            return 0
        if tir.as_int(self.form.spaces[0].members) is None:
            return 0
        taken = self.turns(0) * self.members[0].term_bytes
        if taken <= (_REGISTER_BYTES if self.all_threads <= 512 else _REGISTER_BYTES // 2):
            return 1
        return 2 if self.kept_at + taken * self.all_threads <= gpu.shared_bytes_of_code else 0

    @property
    def sum_bytes(self) -> int:
        """Shared memory of a sum: what warps have, what the block has, and what all have."""
        lanes = self.members[0].lanes if self.form.across else 1
        parts = max(1, self.threads // 32) + 2
        return ceil(self.teams * parts * self.columns * lanes * 8 / 16) * 16

    @property
    def kept_at(self) -> int:
        return self.sum_bytes * len(self.form.sums)

    def refusal(self, gpu: Gpu) -> Declined | None:
        """Return why no block can be so."""
        if self.all_threads > _THREADS[-1] or self.all_threads < 32 or self.threads < self.columns:
            return Declined("its blocks would have no whole warps, or more than 1024 threads")
        if self.clustered > _SHARERS[-1]:
            return Declined("a cluster has more than 8 blocks")
        if self.clustered > 1 and self.teams > 1:
            return Declined("a cluster has one group")
        if self.kept_at > gpu.shared_bytes_of_code:
            return Declined("an SM does not hold its sums")
        return None

    def kernel(self, gpu: Gpu) -> TextKernel:
        """Return the launch."""
        keeps = self.keeps(gpu)
        spaces = [self._numbers_of(i, keeps if i == 0 else 0) for i in range(len(self.members))]
        lanes = self.members[0].lanes if self.form.across else 1
        numbers = {
            "TX": self.columns, "TY": self.stride, "TEAMS": self.teams, "SHARERS": self.sharers,
            "CLUSTER": self.clustered, "ACROSS": int(self.form.across), "SUM_LANES": lanes, "KEPT_AT": self.kept_at,
            "SUM_BYTES": self.sum_bytes,
        }  # fmt: skip
        kept = self.turns(0) * self.members[0].term_bytes * self.all_threads if keeps == 2 else 0
        wide = keeps == 1 and self.turns(0) * self.members[0].term_bytes > _REGISTER_BYTES // 4
        return TextKernel(
            source(self.form, self.members, spaces, numbers), (), (self.form.out, *buffers(self.form)),
            self.grid, self.clustered, self.all_threads, max(16, self.kept_at + kept),
            max(1, (512 if wide else 1024) // self.all_threads), sizes=at_call(self.form, self.members),
        )  # fmt: skip

    def _numbers_of(self, space: int, keeps: int) -> dict[str, int]:
        size = max(16, self.members[space].term_bytes)
        batch = max(1, min(8, _BATCH_BYTES // size, self.turns(space)))
        known = tir.as_int(self.form.spaces[space].members) is not None
        return {
            "LANES": self.members[space].lanes, "TURNS": self.turns(space) if known else _MANY_TURNS,
            "KEEPS": keeps, "BATCH": batch, "TERM_BYTES": max(1, self.members[space].term_bytes),
        }  # fmt: skip


def _default(form: Reductions, gpu: Gpu, has_clusters: bool) -> Parameters:
    """As few threads a group as have a few vectors each where groups fill the device; else as many as have work.

    Where groups do not fill it with a block each, blocks share them: as clusters, or, where the sums cost little beside
    the results, each with all sums.
    """
    members = _members(form)
    columns = 1
    if form.across:
        vectors = guess(form.groups[-1]) // members[0].lanes
        columns = next((c for c in (4, 8, 16) if c >= vectors or c * members[0].lanes >= 64), 32)
    point = {"threads": max(32, columns), "columns": columns, "teams": 1, "sharers": 1, "cluster": 0}

    def made(**changed: int) -> _Launch:
        return _Launch(form, members, **{**point, **changed})

    wanted = gpu.sms * gpu.threads_per_sm // 2
    most = max(made().vectors(i) for i in range(len(members)) if i == 0 or form.terms_of(i))
    threads = max(8, columns)
    tiles = made().tiles
    while threads < 1024 and threads // columns < most:
        turns = ceil(most * columns / threads)
        if turns <= _LONG and (tiles * threads >= wanted or turns <= 1):
            break
        if turns <= 2 * _LONG and tiles * threads >= 2 * wanted:
            break
        threads *= 2
    point["threads"] = threads
    ctas = tiles if threads >= 128 else ceil(tiles * threads / 128)
    if threads < 128:
        fitting = [n for n in _TEAMS if n * threads <= 128 and n * gpu.sms <= tiles]
        point["teams"] = max(1, 32 // threads, *fitting)
    if ctas <= gpu.sms // 2 and threads >= 128 and not form.symbols:
        point |= _shared(form, members, made(), gpu, has_clusters)
    return point


def _shared(form: Reductions, members: list[Members], alone: _Launch, gpu: Gpu, has_clusters: bool) -> dict[str, int]:
    """How blocks share groups that are fewer than SMs."""
    summed = max((alone.vectors(i) for i in range(len(members)) if form.terms_of(i)), default=0)
    written = alone.vectors(0)
    room = gpu.sms // alone.tiles
    if written >= 8 * summed and not form.terms_of(0):
        useful = max(1, min(_MOST_SHARERS, room, written // alone.threads))
        return {"sharers": useful, "cluster": 0}
    if not has_clusters:
        return {}
    most = [n for n in _SHARERS if n <= room and (n == 1 or max(summed, written) >= n * alone.stride)][-1]
    return {"sharers": most, "cluster": int(most > 1)}

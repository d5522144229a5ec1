"""Template `cuda.transposed`: what reads along another axis than it writes, through a tile in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from relaxc.schedules.cuda.common.expression import Unsupported
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.sizes import at_least_one, divided, guess
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.elementwise.elementwise import most_dividing, most_lanes, source_of
from relaxc.schedules.cuda.elementwise.form import Form, Operand
from relaxc.schedules.cuda.elementwise.lanes import Lanes, buffers_of
from relaxc.schedules.cuda.elementwise.reading import match
from relaxc.schedules.cuda.elementwise.values import TYPES
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import positions, tir
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Expr, PrimFunc, Size
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["Transposed"]

_LEAST = 8
"""Of both axes: shorter ones leave too much of a tile empty."""
_VECTOR_BYTES = 16
_MOST_SHARED = 48 << 10
_TILES = (32, 64, 128)
_THREADS = (128, 256)


@dataclass(frozen=True)
class _Form:
    """`staged` are the operands, by their number, whose fastest axis is `m`; `groups`, what one read of each takes."""

    form: Form
    m: int
    staged: tuple[int, ...]
    groups: tuple[int, ...]

    @property
    def size_m(self) -> Size:
        return self.form.sizes[self.m]


class Transposed(TextTemplate[_Form]):
    """`out[…, m, …, n] = f(x[…, n, …, m], …)`: tiles of (m, n) with 16-byte reads along m and 16-byte writes along n.

    Parameters: `tile_m`, `tile_n`; `threads` of a block.

    The bound is memory: of 4096x4096 in fp16, 67 MB at 2.7 TB/s are 25 us. That is 6 bytes written a cycle and SM, 3
    elements. For each, shared memory takes 1/32 of a cycle to be read (2 bytes a lane) and 1/64 to be written (16 bytes
    a lane), where no two lanes meet in a bank: a tenth of its time. A warp writes groups of 16 bytes: eight lanes fill
    the 128 bytes of a row, a permutation of its groups. It reads column m of the rows n = 8 j + i for one i: those rows
    start in the same bank, but their groups are permuted by j = n / 8, so the eight j read eight different groups.
    """

    name = "cuda.transposed"
    version = 1

    def match(self, func: PrimFunc) -> _Form | Declined:
        """See `TextTemplate`."""
        found = match(func)
        if isinstance(found, Declined):
            return found
        try:
            form = _transposed(found)
            if not isinstance(form, Declined):
                _text(form, 1, 32, 32, 128)
            return form
        except Unsupported as error:
            return Declined(str(error))

    def space(self, form: _Form, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return _choices(form)

    def default(self, form: _Form, gpu: Gpu) -> Parameters:
        """Return rows of 128 bytes on both sides; smaller tiles where there are too few."""
        space = _choices(form)
        widest = max(_bytes_of(form.form.operands[i]) for i in form.staged)
        tile_m = tile_n = 64 if widest <= 4 else 32
        if guess(_tiles(form, tile_m, tile_n)) < 2 * gpu.sms:
            tile_m = tile_n = 32
        while _shared_bytes(form, tile_m, tile_n) > _MOST_SHARED:
            tile_m, tile_n = tile_m // 2, tile_n // 2
        point = {"tile_m": max(t for t in space["tile_m"] if t <= max(tile_m, 32))}
        point["tile_n"] = max(t for t in space["tile_n"] if t <= max(tile_n, 32))
        return {**point, "threads": 256 if point["tile_m"] * point["tile_n"] > 2048 else 128}

    def kernel_of(self, form: _Form, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile_m, tile_n, threads = (parameters[name] for name in ("tile_m", "tile_n", "threads"))
        shared = _shared_bytes(form, tile_m, tile_n)
        if shared > _MOST_SHARED:
            return Declined("its tile is larger than shared memory")
        of, lanes = form.form, most_lanes(form.form)
        numbers = {
            "LANES": lanes, "THREADS": threads, "TILE_M": tile_m, "TILE_N": tile_n, "AXES": len(of.axes),
            "AXIS_M": form.m,
        }  # fmt: skip
        body = _text(form, lanes, tile_m, tile_n, threads) + text_of(
            "relaxc.schedules.cuda.elementwise", "transposed.cuh"
        )
        source = source_of(of, numbers, body, "transposed((char*)shared, ")
        grid = _tiles(form, tile_m, tile_n)
        total = divided(tir.product(list(of.sizes)), lanes)
        pointers = (of.out, *buffers_of(of))
        # Elements that are read one by one are held in a register each.
        per_sm = gpu.threads_per_sm // threads // (2 if min(form.groups) > 2 else 4)
        return TextKernel(
            source, (), pointers, at_least_one(grid), 1, threads,
            shared, per_sm, sizes=(total, *of.symbols) if of.symbols else (),
        )  # fmt: skip


def _transposed(form: Form) -> _Form | Declined:
    if len(form.axes) < 2 or guess(form.sizes[-1]) < _LEAST:
        return Declined("its last axis is short")
    chosen: list[tuple[int, int]] = []
    for i, operand in enumerate(form.operands):
        axis = _fastest(form, operand)
        if axis is not None:
            chosen.append((i, axis))
    axes = {axis for _, axis in chosen}
    if len(axes) != 1:
        return Declined("no operand's fastest axis is another than the result's" if not axes else "it has several")
    (m,) = axes
    if guess(form.sizes[m]) < _LEAST:
        return Declined("the axis along which it reads is short")
    staged = tuple(i for i, _ in chosen)
    return _Form(form, m, staged, tuple(_group(form, form.operands[i], m) for i in staged))


def _fastest(form: Form, operand: Operand) -> int | None:
    """The axis in which an operand has neighbours, where it is not the last and a tile of it can be staged."""
    data = [var for var in tir.variables(operand.at) if var not in form.bounds and var not in form.symbols]
    across = positions.step(operand.at, form.axes[-1], form.bounds)
    if (
        data
        or across is None
        or tir.as_int(across) in (0, 1)
        or any(not _may_guard(form, guard.condition) for guard in operand.guards)
    ):
        return None
    return next((i for i, axis in enumerate(form.axes[:-1]) if tir.stride(operand.at, axis, form.bounds) == 1), None)


def _may_guard(form: Form, condition: Expr) -> bool:
    """Whether a condition is known of a whole row of a tile before anything is read."""
    return all(
        (var in form.bounds or var in form.symbols) and not var.same_as(form.axes[-1])
        for var in tir.variables(condition)
    )


def _group(form: Form, operand: Operand, m: int) -> int:
    """How many neighbours along `m` are read at once: as many as every row is aligned to."""
    if operand.guards:
        return 1
    first = tir.fresh("first")
    most = most_dividing(form.sizes[m], max(1, _VECTOR_BYTES // dtype_bytes(str(operand.buffer.dtype))))
    while most > 1:
        at = tir.substitute(operand.at, {form.axes[m]: first * most})
        bounds = {**form.bounds, first: divided(form.sizes[m], most)}
        if tir.as_int(tir.simplify(tirx.floormod(at, most), bounds)) == 0:
            return most
        most //= 2
    return 1


def _choices(form: _Form) -> Choices:
    """Tiles that are not twice as long as an axis, and that all threads have whole turns of."""
    sizes = guess(form.size_m), guess(form.form.sizes[-1])
    tile_m, tile_n = (tuple(t for t in _TILES if t == _TILES[0] or t < 2 * size) for size in sizes)
    return {"tile_m": tile_m, "tile_n": tile_n, "threads": _THREADS}


def _tiles(form: _Form, tile_m: int, tile_n: int) -> Size:
    batch = [size for i, size in enumerate(form.form.sizes[:-1]) if i != form.m]
    tiles = tir.ceil_div(form.size_m, tile_m), tir.ceil_div(form.form.sizes[-1], tile_n)
    return tir.product([*batch, *tiles])


def _bytes_of(operand: Operand) -> int:
    return dtype_bytes(str(operand.buffer.dtype))


def _shared_bytes(form: _Form, tile_m: int, tile_n: int) -> int:
    return sum(tile_m * tile_n * _bytes_of(form.form.operands[i]) for i in form.staged)


def _text(form: _Form, lanes: int, tile_m: int, tile_n: int, threads: int) -> str:
    writer = Lanes(form.form, lanes, staged=form.staged)
    return (
        writer.text()
        + _extents(form, writer, tile_m, tile_n, threads)
        + _batch_of(form, writer)
        + _position_of(form, writer)
        + _staging(form, writer, tile_m, tile_n, threads)
    )


def _extents(form: _Form, writer: Lanes, tile_m: int, tile_n: int, threads: int) -> str:
    """How long both axes are, and whether tiles and turns are all whole."""
    sizes = {"m": form.size_m, "n": form.form.sizes[-1]}
    parts = zip(sizes.values(), (tile_m, tile_n), strict=True)
    whole = all(isinstance(size, int) and size % tile == 0 for size, tile in parts)
    whole = whole and tile_m * (tile_n // writer.lanes) % threads == 0
    places = writer.sizes_at() and f"  Place at;\n{writer.sizes_at()}"
    functions = "".join(
        f"DEV Extent extent_{name}_of(const Operands& operands) {{\n{places}  return {writer.size(size)};\n}}\n"
        for name, size in sizes.items()
    )
    extent = "long long" if form.form.symbols else "int"
    return f"typedef {extent} Extent;\nconstexpr bool WHOLE = {str(whole).lower()};\n{functions}"


def _batch_of(form: _Form, writer: Lanes) -> str:
    """`batch_of`: the place of the first element of a batch."""
    lines = []
    for i in reversed(range(len(form.form.axes) - 1)):
        if i != form.m:
            lines.append(writer.split(i, form.form.sizes[i], 1))
    zeros = f"  at.x[{form.m}] = 0;\n  at.x[{len(form.form.axes) - 1}] = 0;\n"
    return (
        "DEV Place batch_of(unsigned int batch, const Operands& operands) {\n  Place at;\n  Count rest = batch;\n"
        f"{writer.sizes_at()}{''.join(lines)}{zeros}  return at;\n}}\n"
    )


def _position_of(form: _Form, writer: Lanes) -> str:
    return f"DEV long long position_of(const Place& at) {{ return {writer.position(form.form.place)}; }}\n"


def _staging(form: _Form, writer: Lanes, tile_m: int, tile_n: int, threads: int) -> str:
    """`Staged` and what fills it from memory, brings it to shared memory and reads a vector from there."""
    fields, fetch, keep, gather, offset = [], [], [], [], 0
    size_m, size_n = form.size_m, form.form.sizes[-1]
    m, n = f"at.x[{form.m}]", f"at.x[{len(form.form.axes) - 1}]"
    for i, group in zip(form.staged, form.groups, strict=True):
        operand = form.form.operands[i]
        c_type, parts = TYPES[str(operand.buffer.dtype)], tile_m // group
        whole = tile_n * parts % threads == 0
        inside = "" if whole else f"turn / {parts} < {tile_n}u"
        within = [
            "" if isinstance(size, int) and size % tile == 0 else f"{place} < {writer.size(size)}"
            for place, size, tile in ((m, size_m, tile_m), (n, size_n, tile_n))
        ]
        fields.append(
            f"constexpr int TURNS{i} = ({tile_n} * {parts} + THREADS - 1) / THREADS;\n"
            f"typedef Tile<{c_type}, {tile_m}, {group}, {writer.lanes}> Tile{i};\n"
            f"constexpr int OFFSET{i} = {offset};\n"
        )
        loop = (
            f"#pragma unroll\n  for (int i = 0; i < TURNS{i}; i++) {{\n"
            "    const unsigned int turn = threadIdx.x + i * THREADS;\n"
        )
        fetch.append(
            f"{loop}    Place at = corner;\n    {m} = m0 + (int)(turn % {parts} * {group});\n"
            f"    {n} = n0 + (int)(turn / {parts});\n    set_zero(staged.v{i}[i]);\n"
            f"    {_if([inside, *within, writer.condition(operand.guards)])}staged.v{i}[i] = "
            f"*(const Tile{i}::Part*)((const {c_type}*){writer.pointer(operand)} + "
            f"{writer.position(operand.at)});\n  }}\n"
        )
        keep.append(
            f"{loop}    {_if([inside])}"
            f"Tile{i}::write(shared + OFFSET{i}, turn / {parts}, turn % {parts}, staged.v{i}[i]);\n  }}\n"
        )
        gather.append(f"  Tile{i}::read(in.v{i}, shared + OFFSET{i}, n, m);\n")
        offset += tile_m * tile_n * _bytes_of(operand)
    arrays = "".join(f"  Tile{i}::Part v{i}[TURNS{i}];\n" for i in form.staged)
    return (
        f"{''.join(fields)}struct Staged {{\n{arrays}}};\n"
        "DEV void fetch(Staged& staged, const Place& corner, Extent m0, Extent n0, const Operands& operands) {\n"
        f"{''.join(fetch)}}}\nDEV void keep(char* shared, const Staged& staged) {{\n{''.join(keep)}}}\n"
        f"DEV void gather(Loaded& in, const char* shared, unsigned int m, unsigned int n) {{\n{''.join(gather)}}}\n"
    )


def _if(conditions: Sequence[str]) -> str:
    given = [condition for condition in conditions if condition]
    return f"if ({' && '.join(given)}) " if given else ""

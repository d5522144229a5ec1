"""Template `cuda.gemm_sm90`: products of 16-bit floats, 8-bit floats and bytes on Hopper's tensor cores.

A persistent kernel with a producer warp and one or two consumer warpgroups (wgmma, TMA, mbarriers, clusters), after
CUTLASS's `sm90` collectives: the algorithm is `kernel.cuh`. The sums are fp32, of bytes int32; what is fused with the
product is done on them in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tvm import tirx

from relaxc.schedules.cuda.common.epilogue import pair_type
from relaxc.schedules.cuda.common.expression import BYTES, C_TYPES, FP8, LOW
from relaxc.schedules.cuda.common.kernel import TensorMap, TextKernel, text_of
from relaxc.schedules.cuda.common.sizes import at_least_one
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.gemm.form import ROWS, Gemm, match
from relaxc.schedules.cuda.gemm.tile import COPIED_ROWS, MANY_ROWS, Tile, by_rows, choices, default, many, refusal
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import tir
from relaxc.schedules.ir.types import Expr, PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["GemmSm90", "multiply", "source"]


_KINDS = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", FP8: "e4m3"}


class GemmSm90(TextTemplate[Gemm]):
    """`out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`; B by rows or by columns, of 8 bits by columns.

    Parameters: `rows` and `columns` of the tile, `atoms` of 128 bytes in a step of the sum, `splits` (0: two warpgroups
    in turns; 2 and 4: CTAs of a cluster share the sum), `cluster` of CTAs that share B, `group` of rows of tiles,
    `ahead` (1: what is fused with a tile comes into L2 a tile earlier), `share` (2: two CTAs an SM where they fit);
    of 8-bit floats also `partial`: atoms whose products the tensor cores add before their sum is added to another.
    """

    name = "cuda.gemm_sm90"
    version = 8
    since = "sm_90a"

    def match(self, func: PrimFunc) -> Gemm | Declined:
        """See `TextTemplate`."""
        found = match(func, at_call=True)
        if isinstance(found, Gemm) and found.rows is not None and found.dtype not in LOW:
            return Declined("its rows are known at the call alone, and its operands are of 8 bits")
        return found

    def space(self, form: Gemm, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return choices(form) if form.rows is None else choices(replace(form, m=MANY_ROWS))

    def default(self, form: Gemm, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return default(form, gpu) if form.rows is None else many(form, gpu).parameters()

    def kernel_of(self, form: Gemm, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = Tile.of(parameters)
        if reason := refusal(tile):
            return Declined(reason)
        return kernel(form, tile, gpu) if form.rows is None else kernel_at_call(form, tile, gpu)


def _maps(gemm: Gemm, tile: Tile) -> list[TensorMap]:
    """Those of A and of B, and of C where the copy engine stores it; of no rows, as of one."""
    low = str(gemm.out.dtype) in LOW
    rows = (tile.rows if tile.ping_pong else tile.rows // tile.consumers) if tile.by_copy_engine(low) else 0
    b_dims = (gemm.n, gemm.k, gemm.batch) if gemm.n_major else (gemm.k, gemm.n, gemm.batch)
    m = gemm.m if gemm.rows is None else at_least_one(gemm.rows)
    return [
        TensorMap(gemm.a, (gemm.k, m, gemm.batch), COPIED_ROWS),
        TensorMap(gemm.b, b_dims, 64 if gemm.n_major else tile.columns // tile.cluster),
        *([TensorMap(gemm.out, (gemm.n, m, gemm.batch), rows)] if rows else []),
    ]


def kernel_at_call(gemm: Gemm, tile: Tile, gpu: Gpu) -> TextKernel:
    """Return one launch of `gemm`, whose rows are known at the call: in tiles of `tile`, or, of fewer rows, in others.

    All texts are in one kernel, of as many threads as any needs: those that a text has no work for only meet the
    others. Clusters share a sum of few rows; where there are many, each CTA is for itself.
    """
    assert gemm.rows is not None
    low = str(gemm.out.dtype) in LOW
    chosen = by_rows(gemm, tile, gpu) if tile.cluster * tile.parts == 1 else [(0, tile)]
    body, maps = text_of("relaxc.schedules.cuda.common", "hopper.cuh"), [_maps(gemm, each) for _, each in chosen]
    size = max(each.cluster * each.parts for _, each in chosen)
    fields = [f"p{i}" for i in range(len(gemm.operands))] + [f"s{i}" for i in range(len(gemm.sizes))]
    calls, first = "", 0
    grid = tir.ceil_div(_grid(gemm, tile, gpu), size) * size
    for at, ((most, each), own) in enumerate(zip(chosen, maps, strict=True)):
        text = _body(gemm, each, gpu, text_of("relaxc.schedules.cuda.gemm", "rows.cuh"), {})
        body += f"namespace NAME_{at} {{\n{text}}}\n"
        given = [f"(const hopper::TensorMap*)m{first + i}" for i in range(len(own))] + ["nullptr"] * (3 - len(own))
        calls += f"  if (s0 <= {most}) return " if most else "  "
        calls += f"NAME_{at}::gemm((uint8_t*)shared, {', '.join(given)}, (NAME_{at}::Out*)out, "
        calls += f"NAME_{at}::Operands{{{', '.join(fields)}}});\n"
        first += len(own)
    for most, each in reversed(chosen[:-1]):
        grid = tirx.Select(gemm.rows <= most, tir.ceil_div(_grid(gemm, each, gpu), size) * size, grid)
    parameters = ["void* shared", *(f"unsigned long long m{i}" for i in range(first)), "void* out"]
    parameters += [f"const void* p{i}" for i in range(len(gemm.operands))]
    parameters += [f"long long s{i}" for i in range(len(gemm.sizes))]
    return TextKernel(
        source=f"{body}__device__ __forceinline__ void NAME({', '.join(parameters)}) {{\n{calls}}}\n",
        maps=[each for own in maps for each in own],
        pointers=(gemm.out, *gemm.operands),
        grid=at_least_one(grid),
        cluster=size,
        threads=max(each.threads for _, each in chosen),
        shared_bytes=max(each.shared_bytes(gpu, low) for _, each in chosen),
        per_sm=1,
        sizes=gemm.sizes,
    )


def _grid(gemm: Gemm, tile: Tile, gpu: Gpu) -> Expr:
    """The CTAs, as `Tile.grid` has them."""
    size = tile.cluster * tile.parts
    tiles = tir.ceil_div(tir.ceil_div(gemm.rows, tile.rows), tile.cluster) * (-(-gemm.n // tile.columns))
    return (tiles if tile.parts > 1 else tirx.Min(tiles, tir.index_const(gpu.sms // size))) * size


def kernel(gemm: Gemm, tile: Tile, gpu: Gpu) -> TextKernel:
    """Return the launch of `gemm` in tiles of `tile`."""
    low = str(gemm.out.dtype) in LOW
    return TextKernel(
        source=source(gemm, tile, gpu, rows=text_of("relaxc.schedules.cuda.gemm", "rows.cuh")),
        maps=_maps(gemm, tile),
        pointers=(gemm.out, *gemm.operands),
        grid=tile.grid(gemm, gpu),
        cluster=tile.cluster * tile.parts,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(gpu, low),
        per_sm=tile.per_sm,
    )


def source(gemm: Gemm, tile: Tile, gpu: Gpu, *, rows: str, numbers: Mapping[str, int] | None = None) -> str:
    """Return the text of `kernel.cuh` for `gemm`, with `rows`: the text of what a row is, and its `numbers`."""
    by_tma = tile.by_copy_engine(str(gemm.out.dtype) in LOW)
    instructions = text_of("relaxc.schedules.cuda.common", "hopper.cuh")
    text = _body(gemm, tile, gpu, rows, numbers or {})
    return f"{instructions}namespace NAME_ {{\n{text}}}\n{_entry(gemm, by_tma)}"


def _body(gemm: Gemm, tile: Tile, gpu: Gpu, rows: str, numbers: Mapping[str, int]) -> str:
    """What stands in the text's namespace."""
    low = str(gemm.out.dtype) in LOW
    by_tma = tile.by_copy_engine(low)
    stages, atoms = tile.ring(gpu, low)
    constants = {
        "TILE_M": tile.rows, "TILE_N": tile.columns, "K_ATOMS": atoms, "STAGES": stages,
        "CONSUMERS": tile.consumers, "CLUSTER_M": tile.cluster, "SPLITS": tile.parts, "GROUP_M": tile.group,
        "BUFFERS": tile.buffers, "BOX_ROWS": COPIED_ROWS,
        "PARTIAL_STEPS": -(-tile.partial // atoms),
        "SIZE_M": gemm.m if gemm.rows is None else 0, "SIZE_N": gemm.n, "SIZE_K": gemm.k, "BATCH": gemm.batch,
        "ATOM_K": gemm.atom,
        **numbers,
    }  # fmt: skip
    switches = {
        "PING_PONG": tile.ping_pong, "N_MAJOR": gemm.n_major, "BY_TMA": by_tma,
        "MOVES_REGISTERS": tile.moves_registers, "AHEAD": tile.ahead == 1,
        "SHARES": tile.per_sm > 1,
    }  # fmt: skip
    lines = [f"constexpr int {name} = {value};\n" for name, value in constants.items()]
    lines += [f"constexpr bool {name} = {str(value).lower()};\n" for name, value in switches.items()]
    sums, out = gemm.sums, str(gemm.out.dtype)
    types = {"Sum": C_TYPES[sums], "Sums": pair_type(sums), "Out": C_TYPES[out], "Done": pair_type(out)}
    types["Place"] = "int" if gemm.rows is None else "long long"
    lines += [f"typedef {of} {name};\n" for name, of in types.items()]
    lines.append("using namespace hopper;\n")
    if tile.ahead:  # the compiler takes a prefetch for something that may write
        lines += [f"using constant::{name};\n" for name in ("load", "load_pair", "load_two")]
    count = "SIZE_M" if gemm.rows is None else f"(int)operands.{ROWS}"
    lines += [gemm.epilogue, f"DEV int rows_of(const Operands& operands) {{ return {count}; }}\n"]
    parts = [*lines, multiply(tile.columns, (gemm.dtype, str(gemm.b.dtype)), gemm.n_major), rows]
    parts += [text_of("relaxc.schedules.cuda.gemm", name) for name in ("tiles.cuh", "kernel.cuh")]
    return "".join(parts)


def multiply(columns: int, dtypes: tuple[str, str], n_major: bool) -> str:
    """Return the text of one wgmma, its sums named one by one: `d[64, columns] (+)= a[64, s] * b[s, columns]`.

    s is the elements of 32 bytes: 16 or 32.
    """
    count = columns // 2
    a, b = (_KINDS[dtype] for dtype in dtypes)
    of_bytes, is_short = dtypes[0] in BYTES, dtypes[0] in (*BYTES, FP8)
    shape, sums = f"m64n{columns}k{32 if is_short else 16}", "s32" if of_bytes else "f32"
    rest = "p" if of_bytes else "p, 1, 1" if is_short else f"p, 1, 1, 0, {int(n_major)}"
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+{"r" if of_bytes else "f"}"(d[{i}])' for i in range(count))
    return (
        f"DEV void multiply({'int' if of_bytes else 'float'} (&d)[{count}], uint64_t a, uint64_t b, int adds) {{\n"
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.{shape}.{sums}.{a}.{b} {{{registers}}}, "\n'
        f'    "%{count}, %{count + 1}, {rest};\\n}}\\n"\n'
        f'    : {outputs} : "l"(a), "l"(b), "r"(adds));\n}}\n'
    )


def _entry(gemm: Gemm, by_tma: bool) -> str:
    """The function that the PrimFunc calls."""
    maps = ["unsigned long long a", "unsigned long long b", *(["unsigned long long c"] if by_tma else [])]
    pointers = [f"const void* p{i}" for i in range(len(gemm.operands))]
    parameters = ", ".join(["void* shared", *maps, "void* out", *pointers])
    operands = ", ".join(f"p{i}" for i in range(len(gemm.operands)))
    map_type = "const hopper::TensorMap*"
    c = f"({map_type})c" if by_tma else "nullptr"
    return (
        f"__device__ __forceinline__ void NAME({parameters}) {{\n"
        f"  NAME_::gemm((uint8_t*)shared, ({map_type})a, ({map_type})b, {c}, (NAME_::Out*)out, "
        f"NAME_::Operands{{{operands}}});\n}}\n"
    )

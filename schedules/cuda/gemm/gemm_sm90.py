"""Template `cuda.gemm_sm90`: products of 16-bit floats, 8-bit floats and bytes on Hopper's tensor cores.

A persistent kernel with a producer warp and one or two consumer warpgroups (wgmma, TMA, mbarriers, clusters), after
CUTLASS's `sm90` collectives: the algorithm is `kernel.cuh`. The sums are fp32, of bytes int32; what is fused with the
product is done on them in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from relaxc.schedules.cuda.common.epilogue import pair_type
from relaxc.schedules.cuda.common.expression import BYTES, C_TYPES, FP8, LOW
from relaxc.schedules.cuda.common.kernel import TensorMap, TextKernel, text_of
from relaxc.schedules.cuda.common.template import HopperTemplate
from relaxc.schedules.cuda.gemm.form import Gemm, match
from relaxc.schedules.cuda.gemm.tile import COPIED_ROWS, Tile, choices, default, refusal
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.types import PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["GemmSm90", "multiply", "source"]


_KINDS = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", FP8: "e4m3"}


class GemmSm90(HopperTemplate[Gemm]):
    """`out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`; B by rows or by columns, of 8 bits by columns.

    Parameters: `rows` and `columns` of the tile, `atoms` of 128 bytes in a step of the sum, `splits` (0: two warpgroups
    in turns; 2 and 4: CTAs of a cluster share the sum), `cluster` of CTAs that share B, `group` of rows of tiles,
    `ahead` (1: what is fused with a tile comes into L2 a tile earlier), `share` (2: two CTAs an SM where they fit);
    of 8-bit floats also `partial`: atoms whose products the tensor cores add before their sum is added to another.
    """

    name = "cuda.gemm_sm90"
    version = 8

    def match(self, func: PrimFunc) -> Gemm | Declined:
        """See `HopperTemplate`."""
        return match(func)

    def choices_of(self, form: Gemm, gpu: Gpu) -> Choices:
        """See `HopperTemplate`."""
        return choices(form)

    def default_of(self, form: Gemm, gpu: Gpu) -> Parameters:
        """See `HopperTemplate`."""
        return default(form, gpu)

    def kernel_of(self, form: Gemm, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `HopperTemplate`."""
        tile = Tile.of(parameters)
        return Declined(reason) if (reason := refusal(tile)) else kernel(form, tile, gpu)


def kernel(gemm: Gemm, tile: Tile, gpu: Gpu) -> TextKernel:
    """Return the launch of `gemm` in tiles of `tile`."""
    low = str(gemm.out.dtype) in LOW
    rows = (tile.rows if tile.ping_pong else tile.rows // tile.consumers) if tile.by_copy_engine(low) else 0
    b_dims = (gemm.n, gemm.k, gemm.batch) if gemm.n_major else (gemm.k, gemm.n, gemm.batch)
    maps = [
        TensorMap(gemm.a, (gemm.k, gemm.m, gemm.batch), COPIED_ROWS),
        TensorMap(gemm.b, b_dims, 64 if gemm.n_major else tile.columns // tile.cluster),
        *([TensorMap(gemm.out, (gemm.n, gemm.m, gemm.batch), rows)] if rows else []),
    ]
    return TextKernel(
        source=source(gemm, tile, gpu, rows=text_of("relaxc.schedules.cuda.gemm", "rows.cuh")),
        maps=maps,
        pointers=(gemm.out, *gemm.operands),
        grid=tile.grid(gemm, gpu),
        cluster=tile.cluster * tile.parts,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes(gpu, low),
        per_sm=tile.per_sm,
    )


def source(gemm: Gemm, tile: Tile, gpu: Gpu, *, rows: str, numbers: Mapping[str, int] | None = None) -> str:
    """Return the text of `kernel.cuh` for `gemm`, with `rows`: the text of what a row is, and its `numbers`."""
    low = str(gemm.out.dtype) in LOW
    by_tma = tile.by_copy_engine(low)
    stages, atoms = tile.ring(gpu, low)
    constants = {
        "TILE_M": tile.rows, "TILE_N": tile.columns, "K_ATOMS": atoms, "STAGES": stages,
        "CONSUMERS": tile.consumers, "CLUSTER_M": tile.cluster, "SPLITS": tile.parts, "GROUP_M": tile.group,
        "BUFFERS": tile.buffers, "BOX_ROWS": COPIED_ROWS,
        "PARTIAL_STEPS": -(-tile.partial // atoms),
        "SIZE_M": gemm.m, "SIZE_N": gemm.n, "SIZE_K": gemm.k, "BATCH": gemm.batch, "ATOM_K": gemm.atom,
        **(numbers or {}),
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
    lines += [f"typedef {of} {name};\n" for name, of in types.items()]
    lines.append("using namespace hopper;\n")
    if tile.ahead:  # the compiler takes a prefetch for something that may write
        lines += [f"using constant::{name};\n" for name in ("load", "load_pair", "load_two")]
    parts = [*lines, gemm.epilogue, multiply(tile.columns, (gemm.dtype, str(gemm.b.dtype)), gemm.n_major), rows]
    parts += [text_of("relaxc.schedules.cuda.gemm", name) for name in ("tiles.cuh", "kernel.cuh")]
    instructions = text_of("relaxc.schedules.cuda.common", "hopper.cuh")
    return f"{instructions}namespace NAME_ {{\n{''.join(parts)}}}\n{_entry(gemm, by_tma)}"


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

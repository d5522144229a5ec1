"""Template `cuda.gemm_sm80`: products of floats on the tensor cores of sm_80 and every later device.

A CTA a tile, whose threads copy a ring of operands with cp.async and multiply it with mma.sync, after CUTLASS's `sm80`
multistage collectives: the algorithm is `mma.cuh`, and of fp32 `mma_wide.cuh`. Any sizes: operands whose rows are not
in multiples of 16 bytes are copied by smaller pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from tvm import tirx

from relaxc.schedules.cuda.common.expression import C_TYPES
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.sizes import at_least_one
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.gemm.form import ROWS, Gemm, match
from relaxc.schedules.cuda.gemm.tile_sm80 import GROUP_ROWS, WarpTile, choices, default, refusal
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir.dtypes import dtype_bytes
from relaxc.schedules.ir.types import Expr, PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["GemmSm80", "kernel", "source", "tiles_of", "vectors"]


class GemmSm80(TextTemplate[Gemm]):
    """`out[b, m, n] = epilogue(sum over k of A[b, m, k] * B[b, k, n])`; B by rows or by columns.

    Sizes are known, or its rows at the call.

    Of 16 bits or fp32: this as exact as fp32's own products are, unless the PrimFunc says that tf32 will do.

    Parameters: `rows` and `columns` of the tile, `depth` of a step of the sum (of fp32 half of it is), `stages` of
    the ring, `slices` (groups of warps that share the sum), `warp` (columns of a warp).
    """

    name = "cuda.gemm_sm80"
    version = 4

    def match(self, func: PrimFunc) -> Gemm | Declined:
        """See `TextTemplate`."""
        found = match(func, ragged=True)
        return Declined("it has one column") if isinstance(found, Gemm) and found.n < 2 else found

    def outdone(self, form: Gemm, gpu: Gpu) -> str:
        """See `TextTemplate`: of a row's product only the weights' way counts, which `cuda.gemv` spreads further."""
        return "it has one row" if form.m == 1 and form.batch == 1 else ""

    def space(self, form: Gemm, gpu: Gpu) -> Choices:
        """See `TextTemplate`."""
        return choices(form)

    def default(self, form: Gemm, gpu: Gpu) -> Parameters:
        """See `TextTemplate`."""
        return default(form, gpu)

    def kernel_of(self, form: Gemm, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tile = WarpTile(**parameters)
        return Declined(reason) if (reason := refusal(tile, form)) else kernel(form, tile, gpu)


def kernel(gemm: Gemm, tile: WarpTile, gpu: Gpu) -> TextKernel:
    """Return the launch of `gemm` in tiles of `tile`, a CTA each."""
    return TextKernel(
        source=source(gemm, tile, vectors(gemm), _copies(gemm)),
        maps=(),
        pointers=(gemm.a, gemm.b, gemm.out, *gemm.operands),
        grid=tiles_of(gemm, tile),
        sizes=gemm.sizes,
        cluster=1,
        threads=tile.threads,
        shared_bytes=tile.shared_bytes,
        per_sm=tile.per_sm(gpu, gemm),
        # Small CTAs that begin early find room on the SMs that are idle then, several on each, and leave others empty:
        # on an H100 products of 128 rows took a quarter longer.
        overlaps=False,
    )


def tiles_of(gemm: Gemm, tile: WarpTile) -> int | Expr:
    """Return the tiles of the result, of which the rows may be known at the call."""
    if gemm.rows is None:
        return tile.tiles(gemm)
    return at_least_one(tirx.floordiv(gemm.rows + (tile.rows - 1), tile.rows) * ceil(gemm.n / tile.columns))


def _copies(gemm: Gemm) -> str:
    names = ("mma_rows.cuh", *(("exact_rows.cuh",) if gemm.is_wide else ()))
    return "".join(text_of("relaxc.schedules.cuda.gemm", name) for name in names)


def vectors(gemm: Gemm) -> dict[str, int]:
    """Return the elements of A and of B that may be copied at once."""
    return {"A_VECTOR": _vector(gemm, gemm.k), "B_VECTOR": _vector(gemm, gemm.n if gemm.n_major else gemm.k)}


def source(gemm: Gemm, tile: WarpTile, numbers: Mapping[str, int], copies: str) -> str:
    """Return the text of `mma.cuh`, or of fp32 `mma_wide.cuh`, for `gemm`.

    `copies` is the text of what a thread copies, with its `numbers`.
    """
    constants = {
        "TILE_M": tile.rows, "TILE_N": tile.columns, "TILE_K": tile.depth * 2 // dtype_bytes(gemm.dtype),
        "WARP_M": tile.warp_rows, "WARP_N": tile.warp, "STAGES": tile.stages, "SLICES": tile.slices,
        "GROUP_M": GROUP_ROWS, "SIZE_N": gemm.n, "SIZE_K": gemm.k, **numbers,
    }  # fmt: skip
    lines = [f"constexpr int {name} = {value};\n" for name, value in constants.items()]
    lines.append(f"constexpr bool N_MAJOR = {str(gemm.n_major).lower()};\n")
    is_whole = gemm.rows is None and gemm.m % tile.rows == 0
    lines.append(f"constexpr int SIZE_M = {0 if gemm.rows is not None else gemm.m};\n")
    lines.append(f"constexpr bool M_IS_WHOLE = {str(is_whole).lower()};\n")
    if gemm.is_wide:
        lines.append(f"constexpr bool IN_TF32 = {str(gemm.in_tf32).lower()};\n")
    lines.append(f"typedef {C_TYPES[gemm.dtype]} In;\ntypedef {C_TYPES[str(gemm.out.dtype)]} Out;\n")
    lines.append("using namespace hopper;\nusing namespace ampere;\n")
    # Loads may go before the stores of others.
    lines += [f"using constant::{name};\n" for name in ("load", "load_pair", "load_two")]
    tiles, shape, stores, algorithm = (
        text_of("relaxc.schedules.cuda.gemm", f"{name}.cuh")
        for name in ("tiles", "mma_tile", "mma_store", "mma_wide" if gemm.is_wide else "mma")
    )
    rows = f"(int)operands.{ROWS}" if gemm.rows is not None else "SIZE_M"
    lines += [gemm.epilogue, f"DEV int rows_of(const Operands& operands) {{ return {rows}; }}\n"]
    text = "".join((*lines, tiles, shape, copies, stores, algorithm))
    instructions = "".join(text_of("relaxc.schedules.cuda.common", name) for name in ("hopper.cuh", "ampere.cuh"))
    return f"{instructions}namespace NAME_ {{\n{text}}}\n{_entry(gemm)}"


def _entry(gemm: Gemm) -> str:
    """The function that the PrimFunc calls."""
    pointers = "".join(f", const void* p{i}" for i in range(len(gemm.operands)))
    pointers += "".join(f", long long s{i}" for i in range(len(gemm.sizes)))
    operands = ", ".join((*(f"p{i}" for i in range(len(gemm.operands))), *(f"s{i}" for i in range(len(gemm.sizes)))))
    return (
        f"__device__ __forceinline__ void NAME(void* shared, const void* a, const void* b, void* out{pointers}) {{\n"
        f"  NAME_::gemm((uint8_t*)shared, (const NAME_::In*)a, (const NAME_::In*)b, (NAME_::Out*)out, "
        f"NAME_::Operands{{{operands}}});\n}}\n"
    )


def _vector(gemm: Gemm, row: int) -> int:
    """The elements that may be copied at once where rows of `row` elements follow each other: up to 16 bytes."""
    return next(size for size in (8, 4, 2, 1) if row % size == 0 and size * dtype_bytes(gemm.dtype) <= 16)

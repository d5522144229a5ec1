"""Template `cuda.matmul_blocks`: products of a few rows with weights of 4 or 8 bits, since sm_80.

The weights go from memory to the tensor cores' fragments in registers, read once; what a product of few rows costs is
their bytes. The algorithm is `blocks.cuh`, the order of the codes `blocks_compute.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod

from tvm import tirx
from tvm.ir import TensorLoad

from relaxc.schedules.cuda.common.epilogue import Axes, epilogue_of
from relaxc.schedules.cuda.common.expression import C_TYPES, LOW, Unsupported
from relaxc.schedules.cuda.common.kernel import TextKernel, text_of
from relaxc.schedules.cuda.common.template import TextTemplate
from relaxc.schedules.cuda.gemm.blocks_compute import LANES, MOST_ROWS, TILE, Blocks
from relaxc.schedules.cuda.gemm.form import lies_by
from relaxc.schedules.hardware import Gpu
from relaxc.schedules.ir import contraction, tir
from relaxc.schedules.ir.analysis import static_parameters
from relaxc.schedules.ir.contraction import Contraction
from relaxc.schedules.ir.types import Buffer, PrimFunc
from relaxc.schedules.template import Choices, Declined, Parameters

__all__ = ["MatmulBlocks"]

_MOST_ELEMENTS = 1 << 31
_WARPS, _TILES, _AHEAD = (4, 8, 16), (1, 2, 4), (2, 4, 8)
_DEEP = 12 << 10
"""From this depth on two CTAs of a cluster share it, where there are few columns."""
_MOST_LOADED = 8
"""Codes of a lane, in 16 bytes, that its registers hold at a time."""


@dataclass(frozen=True)
class _Product:
    """`out[m, n] = epilogue(sum over k of A[m, k] * weight(n, k))`; `parts` are the weights' buffers."""

    rows: int
    weights: Blocks
    a: Buffer
    parts: tuple[Buffer, ...]
    out: Buffer
    epilogue: str
    operands: tuple[Buffer, ...]


class MatmulBlocks(TextTemplate[_Product]):
    """`out[m, n] = epilogue(sum over k of A[m, k] * (code[n, k] - zero[n, k / block]) * scale[n, k / block])`.

    Parameters: `tiles` of 16 columns of a CTA, `warps` that share the depth, `splits`: CTAs of a cluster that share it
    too, `ahead`: steps of a warp that are loaded together.
    """

    name = "cuda.matmul_blocks"
    version = 1

    def match(self, func: PrimFunc) -> _Product | Declined:
        """See `TextTemplate`."""
        parameters = static_parameters(func)
        if parameters is None:
            return Declined("its sizes are symbolic")
        found = contraction.find(func)
        if isinstance(found, Declined):
            return found
        if found.dtype != "float32" or found.b or len(found.n) != 1 or len(found.k) != 1:
            return Declined("it is no product with one matrix of weights in fp32 sums")
        a = found.left.value if isinstance(found.left, tirx.Cast) else found.left
        if not isinstance(a, TensorLoad) or str(a.source.dtype) not in LOW:
            return Declined("its rows are not plain elements of 16-bit floats")
        weights = _weights(found)
        if isinstance(weights, Declined):
            return weights
        blocks, parts = weights
        rows = int(found.size(found.m))
        if rows > MOST_ROWS:
            return Declined(f"it has more than {MOST_ROWS} rows")
        if not all(any(buffer.same_as(param) for param in parameters) for buffer in (a.source, *parts)):
            return Declined("an operand is computed in the same PrimFunc")
        if not lies_by(a, found, (*found.m, *found.k)):
            return Declined("its rows do not lie one after the other")
        if max(rows * blocks.depth, rows * blocks.columns, prod(blocks.shapes[0])) >= _MOST_ELEMENTS:
            return Declined("an operand has 2^31 elements or more")
        axes = Axes((), found.m, found.n, found.extents, found.origin)
        try:
            fused = epilogue_of(func, found.block, axes)
        except Unsupported as error:
            return Declined(str(error))
        return _Product(rows, blocks, a.source, parts, fused.out, fused.text, fused.operands)

    def space(self, form: _Product, gpu: Gpu) -> Choices:
        """See `TextTemplate`; a point that loads more than registers hold is refused."""
        return {"tiles": _TILES, "warps": _WARPS, "splits": _splits(gpu), "ahead": _AHEAD}

    def default(self, form: _Product, gpu: Gpu) -> Parameters:
        """See `TextTemplate`: wide tiles where there are enough, else the depth in parts (docs/benchmarks_gpu.md)."""
        ctas, splits = _ctas(form, 4), _splits(gpu)
        if ctas >= 0.75 * gpu.sms:
            return {"tiles": 4, "warps": 8, "splits": 1 if ctas >= gpu.sms else min(2, splits[-1]), "ahead": 2}
        if ctas >= 0.25 * gpu.sms:  # many warps share the depth: a cluster's exchange takes longer than a CTA's
            if form.rows > 8:
                return {"tiles": 2, "warps": 16, "splits": 1, "ahead": 2}
            if form.weights.depth >= _DEEP and splits[-1] > 1:
                return {"tiles": 4, "warps": 16, "splits": 2, "ahead": 2}
            return {"tiles": 2, "warps": 16, "splits": 1, "ahead": 4}
        return {"tiles": 1, "warps": 16, "splits": 1, "ahead": 4}

    def kernel_of(self, form: _Product, parameters: Parameters, gpu: Gpu) -> TextKernel | Declined:
        """See `TextTemplate`."""
        tiles, warps, splits, ahead = (parameters[name] for name in ("tiles", "warps", "splits", "ahead"))
        if tiles * ahead > _MOST_LOADED:
            return Declined("a warp has no registers for so many steps of so many tiles")
        rows = ceil(form.rows / 8) * 8
        return TextKernel(
            source=_source(form, tiles, warps, splits, ahead),
            maps=(),
            pointers=(form.a, *form.parts, form.out, *form.operands),
            grid=_ctas(form, tiles) * splits,
            cluster=splits,
            threads=warps * 32,
            shared_bytes=warps * rows * (tiles * TILE + 4) * 4,
            per_sm=max(1, 16 // warps),
        )


def _ctas(form: _Product, tiles: int) -> int:
    return ceil(form.weights.tiles / tiles)


def _weights(found: Contraction) -> tuple[Blocks, tuple[Buffer, ...]] | Declined:
    """The weights that the right operand is, with their buffers: the expression is that of `Blocks.weight`."""
    n, k = found.n[0], found.k[0]
    columns, depth = int(found.extents[n]), int(found.extents[k])
    buffers = list(dict.fromkeys(load.source for load in tir.loads(found.right)))
    codes = [buffer for buffer in buffers if [int(dim) for dim in buffer.shape[2:]] == [LANES, 16]]
    rest = [buffer for buffer in buffers if buffer not in codes]
    scales = [buffer for buffer in rest if str(buffer.dtype) != "uint8"]
    zeros = [buffer for buffer in rest if str(buffer.dtype) == "uint8"]
    if len(codes) != 1 or len(scales) != 1 or len(zeros) > 1 or str(scales[0].dtype) not in (*LOW, "float32"):
        return Declined("its right operand is no packed weights")
    parts = (codes[0], scales[0], *zeros)
    for bits in (4, 8):
        for block in _blocks(depth, int(scales[0].shape[1])):
            blocks = Blocks(columns, depth, bits, block, bool(zeros))
            if [tuple(int(dim) for dim in part.shape) for part in parts] != blocks.shapes:
                continue
            expected = tir.simplify(blocks.weight(parts, n, k), found.extents)
            if tir.same(expected, tir.simplify(found.right, found.extents)):
                return Declined(reason) if (reason := blocks.refusal()) else (blocks, parts)
    return Declined("its right operand is no packed weights")


def _blocks(depth: int, count: int) -> list[int]:
    """The sizes that so many blocks of a depth, and of what fills its last step, may have."""
    return [size for size in range(32, depth + 64, 32) if -(-depth // size) <= count <= -(-(depth + 32) // size)]


def _splits(gpu: Gpu) -> tuple[int, ...]:
    """CTAs that may share their sums."""
    return (1, 2, 4, 8) if gpu.has_clusters else (1,)


def _source(form: _Product, tiles: int, warps: int, splits: int, ahead: int) -> str:
    weights, dtype = form.weights, str(form.a.dtype)
    numbers = {
        "ROWS": form.rows, "COLUMNS": weights.columns, "DEPTH": weights.depth, "BITS": weights.bits,
        "BLOCK": weights.block, "TILES": tiles, "WARPS": warps, "SPLITS": splits, "AHEAD": ahead,
    }  # fmt: skip
    types = {"In": dtype, "Out": str(form.out.dtype), "Scale": str(form.parts[1].dtype)}
    lines = [f"constexpr int {name} = {value};\n" for name, value in numbers.items()]
    lines += [f"typedef {C_TYPES[of]} {name};\n" for name, of in types.items()]
    lines.append(f"constexpr bool HAS_ZEROS = {str(weights.zeros).lower()}, ")
    lines.append(f"IS_HALF = {str(dtype == 'float16').lower()};\n")
    lines.append("using namespace hopper;\nusing namespace ampere;\n")
    lines += [f"using constant::{name};\n" for name in ("load", "load_pair", "load_two")]
    text = "".join((*lines, form.epilogue, text_of("relaxc.schedules.cuda.gemm", "blocks.cuh")))
    instructions = "".join(text_of("relaxc.schedules.cuda.common", name) for name in ("hopper.cuh", "ampere.cuh"))
    return f"{instructions}namespace NAME_ {{\n{text}}}\n{_entry(form)}"


def _entry(form: _Product) -> str:
    """The function that the PrimFunc calls."""
    zeros = ("const void* zeros, ", "(const uint8_t*)zeros") if form.weights.zeros else ("", "nullptr")
    pointers = "".join(f", const void* p{i}" for i in range(len(form.operands)))
    operands = ", ".join(f"p{i}" for i in range(len(form.operands)))
    return (
        f"__device__ __forceinline__ void NAME(void* shared, const void* a, const void* codes, const void* scales, "
        f"{zeros[0]}void* out{pointers}) {{\n"
        f"  NAME_::blocks((uint8_t*)shared, (const NAME_::In*)a, (const uint8_t*)codes, (const NAME_::Scale*)scales, "
        f"{zeros[1]}, (NAME_::Out*)out, NAME_::Operands{{{operands}}});\n}}\n"
    )

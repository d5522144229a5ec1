"""What the texts of attention kernels share: tensor maps, wgmma with named registers, and the way in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from relaxc.schedules.cuda.attention.form import Attention
from relaxc.schedules.cuda.attention.strides import Heads
from relaxc.schedules.cuda.common.expression import C_TYPES, operands_text
from relaxc.schedules.cuda.common.kernel import TensorMap

__all__ = ["AT_CALL", "constants", "entry", "functions", "multiply", "tensor_map"]

AT_CALL = ("batch", "queries", "keys", *(f"{name}_{of}" for name in "qkvo" for of in ("heads", "batches")))
"""The sizes that may be known at the call: how many, and how far apart heads and batches of each operand are."""

_EMPTY = {"nan": "NAN_", "zero": "ZERO", "never_nan": "NEVER_NAN"}
"""What a row without a softmax gets, by `Attention.masked`."""

_NOT_ROUNDED = "DEV float2 rounded(float2 sums, const Operands& operands) { return sums; }\n"
_NOT_FINISHED = "DEV float2 finish(float2 sums, const Operands& operands) { return sums; }\n"

_NO_LOGIT = (
    "DEV float2 logit(float2 sums, int b, int h, int m, int n, int next, const Operands& operands) { return sums; }\n"
)


def functions(attention: Attention) -> str:
    """Return the struct Operands and the functions `logit`, `rounded` and `finish`."""
    at = attention
    texts = (at.logit.text or _NO_LOGIT, at.rounded or _NOT_ROUNDED, at.finish or _NOT_FINISHED)
    sizes = (*AT_CALL, *(f"s{i}" for i in range(len(at.symbols)))) if at.symbols else ()
    return "".join((operands_text(at.operands, sizes), *texts, _page("k", at.k, at), _page("v", at.v, at)))


def _page(name: str, heads: Heads, attention: Attention) -> str:
    """The function `k_page` or `v_page`: the page of row `n`, for whatever the table says one of the cache."""
    pages = heads.pages
    constants = f"constexpr bool {name.upper()}_PAGED = {str(pages is not None).lower()};\n"
    constants += f"constexpr int {name.upper()}_PAGE = {pages.rows if pages else 1};\n"
    constants += f"constexpr int {name.upper()}_PAGES = {pages.count if pages else 0};\n"
    signature = f"DEV int {name}_page(int b, int n, const Operands& operands)"
    if pages is None:
        return f"{constants}{signature} {{ return 0; }}\n"
    number = next(i for i, other in enumerate(attention.operands) if other.same_as(pages.table))
    place = f"{pages.start} + b * {pages.batches} + min(n / {pages.rows}, {pages.entries - 1})"
    dtype = C_TYPES[str(pages.table.dtype)]
    found = f"((const {dtype}*)operands.p{number})[{place}]"
    return f"{constants}{signature} {{\n  return (int)min(max({found}, ({dtype})0), ({dtype}){pages.count - 1});\n}}\n"


def constants(attention: Attention, numbers: Mapping[str, int], switches: Mapping[str, bool]) -> str:
    """Return the text of a kernel's constants, and of what each has: EMPTY, LOG2_SCALE, and the types Low and Out."""
    scale = math.log2(math.e) * (1.0 if attention.logit.text else attention.logit.scale)
    lines = [f"constexpr int {name} = {value};\n" for name, value in numbers.items()]
    lines += [f"constexpr bool {name} = {str(value).lower()};\n" for name, value in switches.items()]
    lines.append(f"constexpr int EMPTY = {_EMPTY[attention.masked]};\n")
    lines.append(f"constexpr float LOG2_SCALE = {float(np.float32(scale)).hex()}f;\n")
    out = C_TYPES[str(attention.out.buffer.dtype)]
    lines.append(f"typedef {C_TYPES[attention.dtype]} Low;\ntypedef {out} Out;\nusing namespace hopper;\n")
    lines.append(f"constexpr bool PACKED = {str(attention.packed).lower()};\n")
    lines.append(f"constexpr bool ROUNDS = {str(bool(attention.rounded)).lower()};\n")
    return "".join(lines)


def tensor_map(attention: Attention, at: Heads, rows: int, heads: int, box: int) -> TensorMap:
    """Return the map of one operand, in boxes of `box` rows of a head; of one in pages, these are its batches."""
    if at.pages is not None:
        dims = (attention.head, at.pages.rows, at.head_at + heads, at.pages.count)
        return TensorMap(at.buffer, dims, box, (at.rows, at.heads, at.batches))
    dims = (attention.head, at.row_at + rows, at.head_at + heads, attention.batch)
    return TensorMap(at.buffer, dims, box, (at.rows, at.heads, at.batches))


def multiply(block: int, head: int, dtype: str) -> tuple[str, str]:
    """Return wgmmas: `S[64, block] (+)= q[64, 16] * k[block, 16]ᵀ`, `sums[64, head] (+)= p[64, 16] * v[16, head]`."""
    return _wgmma("multiply_keys", block, dtype, False), _wgmma("multiply_values", head, dtype, True)


def _wgmma(name: str, columns: int, dtype: str, from_registers: bool) -> str:
    """A wgmma with its sums named register by register; the left operand in registers, the right one by rows then."""
    count = columns // 2
    kind = "bf16" if dtype == "bfloat16" else "f16"
    registers = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    a = [f"%{count + i}" for i in range(4 if from_registers else 1)]
    left = f"{{{', '.join(a)}}}" if from_registers else a[0]
    names = [f"a{i}" for i in range(len(a))]
    kinds = "uint32_t" if from_registers else "uint64_t"
    inputs = ", ".join(f'"{"r" if from_registers else "l"}"({each})' for each in names)
    switches = "p, 1, 1, 1" if from_registers else "p, 1, 1, 0, 0"
    operands = ", ".join(f"{kinds} {each}" for each in names)
    return (
        f"DEV void {name}(float (&d)[{count}], {operands}, uint64_t b, int adds) {{\n"
        f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + len(a) + 1}, 0;\\n"\n'
        f'    "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{registers}}}, "\n'
        f'    "{left}, %{count + len(a)}, {switches};\\n}}\\n"\n'
        f'    : {outputs} : {inputs}, "l"(b), "r"(adds));\n}}\n'
    )


def entry(attention: Attention, function: str) -> str:
    """Return the function that the PrimFunc calls, around `function` of the namespace."""
    pointers = [f"const void* p{i}" for i in range(len(attention.operands))]
    maps = [f"unsigned long long {name}" for name in "qkv"]
    operands = ", ".join(f"p{i}" for i in range(len(pointers)))
    given = ", ".join(f"(const hopper::TensorMap*){name}" for name in "qkv")
    return (
        f"__device__ __forceinline__ void NAME({', '.join(['void* shared', *maps, 'void* out', *pointers])}) {{\n"
        f"  NAME_::{function}((uint8_t*)shared, {given}, (NAME_::Out*)out, NAME_::Operands{{{operands}}});\n}}\n"
    )

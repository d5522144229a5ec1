"""LLVM IR for tile registers (AMX): a product of a few of them, and what they are configured as."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.cpu.gemm.matrix_plan import REGISTERS
from schedules.dots import Dot

__all__ = ["configuration", "declarations", "product", "release"]

_ROWS = 16
"""Of a register."""
_ROW_BYTES = 64
_PALETTE = 1


def declarations(dot: Dot) -> str:
    """Return the code that names what the others call: the tiles that they are of are part of each instruction."""
    return f"""declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloaddt164(i8 immarg, ptr, i64)
declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)
declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)
declare void @{dot.intrinsic}(i8 immarg, i8 immarg, i8 immarg)
declare void @llvm.x86.tilerelease()
"""


def configuration(sums: tuple[int, int], rows: Sequence[int]) -> tuple[str, str]:
    """Return name and code of `f()`, which configures the calling thread's registers for `product` and clears them.

    `sums` are the registers of sums, down and across; the i-th of a has `rows[i]` rows, and so have its sums. Intel 64
    manual, volume 1, 18.2: the palette, from byte 16 the bytes of a row in 16 bits each, from byte 48 the rows.
    """
    down, across = sums
    of_sums = [rows[i] for i in range(down) for _ in range(across)]
    heights = [*of_sums, *rows, *[_ROWS] * (REGISTERS - down * across - down)]
    content = [_PALETTE, *bytes(15), *[_ROW_BYTES, 0] * REGISTERS, *bytes(16), *heights, *bytes(8)]
    name = f"relaxc_tiles_{down}x{across}_rows_{'_'.join(map(str, rows))}"
    held = ", ".join(f"i8 {byte}" for byte in content)
    return (
        name,
        f"""@{name}_bytes = private unnamed_addr constant [{len(content)} x i8] [{held}], align 64
define i32 @{name}() {{
  call void @llvm.x86.ldtilecfg(ptr @{name}_bytes)
  ret i32 0
}}
""",
    )


def release() -> tuple[str, str]:
    """Return name and code of `f()`, behind which the calling thread has no tiles that must be saved."""
    name = "relaxc_tiles_release"
    return (
        name,
        f"""define i32 @{name}() {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
""",
    )


def product(dot: Dot, sums: tuple[int, int], steps: int, rows: int, ahead: int = 0) -> tuple[str, str]:
    """Return name and code of `f(c, b, a0, a1, …, next)`: `c[m, n] = sum over k of a[m, k] * b[k, n]`.

    `sums` are the registers of sums, down and across: c and the panel b are as wide as these. Each register down has
    its own a, of `steps` times the depth of `dot`; the sums of one are `rows` below those of the one before in c.
    Each step fetches `ahead` lines of what lies at `next`, the next panel, as L3 answers too late without that; there
    is no `next` without `ahead`. Loads say that their lines are not needed in L1 for long (TILELOADDT1): from L2 they
    take 0.83 of the time of others, and as long from L1 (Xeon, 2026-11-26).
    """
    down, across = sums
    places = [(i, j) for i in range(down) for j in range(across)]
    free = REGISTERS - len(places) - down
    width, depth_bytes = across * _ROW_BYTES, steps * _ROW_BYTES
    begin = [f"  call void @llvm.x86.tilezero(i8 {register})" for register in range(len(places))]
    end, fetches = [], []
    for line in range(ahead):
        fetches.append(f"  %line{line} = getelementptr i8, ptr %slice, i64 {line * _ROW_BYTES}")
        fetches.append(f"  call void @llvm.prefetch.p0(ptr %line{line}, i32 0, i32 3, i32 1)")
    if ahead:
        fetches[:0] = [
            f"  %fetched = mul i64 %k, {ahead * _ROW_BYTES}",
            "  %slice = getelementptr i8, ptr %next, i64 %fetched",
        ]
    of_a = [
        f"  %at{i} = getelementptr i8, ptr %a{i}, i64 %left\n"
        f"  call void @llvm.x86.tileloaddt164(i8 {len(places) + i}, ptr %at{i}, i64 {depth_bytes})"
        for i in range(down)
    ]
    of_b = [
        f"  %panel{j} = getelementptr i8, ptr %row, i64 {j * _ROW_BYTES}\n"
        f"  call void @llvm.x86.tileloaddt164(i8 {len(places) + down + j % free}, ptr %panel{j}, i64 {width})"
        for j in range(across)
    ]
    products = [
        f"  call void @{dot.intrinsic}(i8 {i * across + j}, i8 {len(places) + i}, i8 {len(places) + down + j % free})"
        for j in range(across)
        for i in range(down)
    ]
    # As many operands as have registers are loaded before the first product: each just before its own took longer.
    step = [of_a[0], *of_b[:free], *of_a[1:], *products[: free * down]]
    for j in range(free, across):
        step += [of_b[j], *products[j * down : (j + 1) * down]]
    for register, (i, j) in enumerate(places):
        end.append(f"  %sums{register} = getelementptr i8, ptr %c, i64 {i * rows * width + j * _ROW_BYTES}")
        end.append(f"  call void @llvm.x86.tilestored64(i8 {register}, ptr %sums{register}, i64 {width})")
    instruction = dot.intrinsic.rpartition(".")[2]
    name = f"relaxc_tiles_{down}x{across}_{instruction}_{steps}_{rows}_{ahead}"
    pointers = ", ".join(["ptr %c", "ptr %b", *(f"ptr %a{i}" for i in range(down)), *["ptr %next"] * bool(ahead)])
    lines = [
        f"define i32 @{name}({pointers}) {{",
        *("entry:", *begin, "  br label %step", "step:"),
        "  %k = phi i64 [ 0, %entry ], [ %following, %step ]",
        f"  %left = mul i64 %k, {_ROW_BYTES}",
        f"  %below = mul i64 %k, {_ROWS * width}",
        "  %row = getelementptr i8, ptr %b, i64 %below",
        *step,
        *fetches,
        "  %following = add i64 %k, 1",
        f"  %more = icmp ult i64 %following, {steps}",
        "  br i1 %more, label %step, label %end",
        *("end:", *end, "  ret i32 0", "}", ""),
    ]
    return name, "\n".join(lines)

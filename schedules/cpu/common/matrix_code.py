"""LLVM IR for tile registers (AMX): a product of a few of them, and what they are configured as."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from relaxc.schedules.cpu.common.tile_registers import REGISTERS
from relaxc.schedules.dots import Dot

__all__ = ["ROWS", "ROW_BYTES", "Walk", "configuration", "declarations", "product", "release", "rows_by_panel"]

ROWS = 16
"""Of a register."""
ROW_BYTES = 64
_PALETTE = 1


def declarations(dot: Dot) -> str:
    """Return the code that names what the others call: the tiles that they are of are part of each instruction."""
    return f"""declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilezero(i8 immarg)
declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)
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
    heights = [*of_sums, *rows, *[ROWS] * (REGISTERS - down * across - down)]
    content = [_PALETTE, *bytes(15), *[ROW_BYTES, 0] * REGISTERS, *bytes(16), *heights, *bytes(8)]
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


@dataclass(frozen=True, slots=True)
class Walk:
    """Where the operands of a product lie, in bytes: `steps` times those at `offsets` in a, and one after another in b.

    a moves on by `left_step` after all offsets, b by `right_step` after each; rows of a register are `left_row` and
    `right_row` from each other, and b's registers across `right_across`.
    """

    steps: int
    offsets: tuple[int, ...]
    left_step: int
    left_row: int
    right_step: int
    right_row: int
    right_across: int


def rows_by_panel(steps: int, across: int) -> Walk:
    """Return the walk through rows of `steps` times a register's 64 bytes, and a panel of `across` vectors."""
    width = across * ROW_BYTES
    return Walk(
        *(steps, (0,), ROW_BYTES, steps * ROW_BYTES), right_step=ROWS * width, right_row=width, right_across=ROW_BYTES
    )


def product(
    dot: Dot, sums: tuple[int, int], walk: Walk, rows: int, ahead: int = 0, *, into_l2: bool = False
) -> tuple[str, str]:
    """Return name and code of `f(c, b, a0, a1, …, next)`: `c[m, n] = sum over k of a[m, k] * b[k, n]`.

    `sums` are the registers of sums, down and across: c is as wide as these. Each register down has its own a; the sums
    of one are `rows` below those of the one before in c.
    Each step fetches `ahead` lines of what lies at `next`, the next panel, as L3 answers too late without that: to L1,
    or to L2 alone; there is no `next` without `ahead`. Loads say that their lines are not needed in L1 for long
    (TILELOADDT1): from L2 they take 0.83 of the time of others, and as long from L1 (Xeon, 2026-11-26). Those of a do
    not where its lines are read again at the next offset.
    """
    down, across = sums
    width = across * ROW_BYTES
    places = [(i, j) for i in range(down) for j in range(across)]
    begin = [f"  call void @llvm.x86.tilezero(i8 {register})" for register in range(len(places))]
    end = []
    for register, (i, j) in enumerate(places):
        end.append(f"  %sums{register} = getelementptr i8, ptr %c, i64 {i * rows * width + j * ROW_BYTES}")
        end.append(f"  call void @llvm.x86.tilestored64(i8 {register}, ptr %sums{register}, i64 {width})")
    steps = []
    for at, offset in enumerate(walk.offsets):
        steps += [
            *_step(dot, sums, walk, at, offset),
            *_fetches(range(at * ahead, (at + 1) * ahead), 2 if into_l2 else 3),
        ]
    if ahead:
        steps[:0] = [
            f"  %fetched = mul i64 %k, {len(walk.offsets) * ahead * ROW_BYTES}",
            "  %slice = getelementptr i8, ptr %next, i64 %fetched",
        ]
    instruction = dot.intrinsic.rpartition(".")[2]
    digest = hashlib.sha256(repr((dot, sums, walk, rows, ahead, into_l2)).encode()).hexdigest()[:16]
    name = f"relaxc_tiles_{down}x{across}_{instruction}_{digest}"
    pointers = ", ".join(["ptr %c", "ptr %b", *(f"ptr %a{i}" for i in range(down)), *["ptr %next"] * bool(ahead)])
    lines = [
        f"define i32 @{name}({pointers}) {{",
        *("entry:", *begin, "  br label %step", "step:"),
        "  %k = phi i64 [ 0, %entry ], [ %following, %step ]",
        f"  %left = mul i64 %k, {walk.left_step}",
        f"  %below = mul i64 %k, {len(walk.offsets) * walk.right_step}",
        *steps,
        "  %following = add i64 %k, 1",
        f"  %more = icmp ult i64 %following, {walk.steps}",
        "  br i1 %more, label %step, label %end",
        *("end:", *end, "  ret i32 0", "}", ""),
    ]
    return name, "\n".join(lines)


def _fetches(lines: range, locality: int) -> list[str]:
    """The lines of code that ask for these lines of a step's slice, with the locality of `llvm.prefetch`."""
    found = []
    for line in lines:
        found.append(f"  %line{line} = getelementptr i8, ptr %slice, i64 {line * ROW_BYTES}")
        found.append(f"  call void @llvm.prefetch.p0(ptr %line{line}, i32 0, i32 {locality}, i32 1)")
    return found


def _step(dot: Dot, sums: tuple[int, int], walk: Walk, at: int, offset: int) -> list[str]:
    """The lines that add the products of the operands at one of the offsets."""
    down, across = sums
    first = down * across
    free = REGISTERS - first - down

    def load(name: str, register: int, base: str, moved: str, by: int, row: int, kind: str = "t1") -> str:
        return (
            f"  %{name}_{at} = getelementptr i8, ptr %{base}, i64 %{moved}\n"
            f"  %{name}_at_{at} = getelementptr i8, ptr %{name}_{at}, i64 {by}\n"
            f"  call void @llvm.x86.tileloadd{kind}64(i8 {register}, ptr %{name}_at_{at}, i64 {row})"
        )

    kind = "t1" if len(walk.offsets) == 1 else ""
    of_a = [load(f"left{i}", first + i, f"a{i}", "left", offset, walk.left_row, kind) for i in range(down)]
    of_b = [
        load(
            *(f"right{j}", first + down + j % free, "b", "below"),
            *(at * walk.right_step + j * walk.right_across, walk.right_row),
        )
        for j in range(across)
    ]
    products = [
        f"  call void @{dot.intrinsic}(i8 {i * across + j}, i8 {first + i}, i8 {first + down + j % free})"
        for j in range(across)
        for i in range(down)
    ]
    # As many operands as have registers are loaded before the first product: each just before its own took longer.
    lines = [of_a[0], *of_b[:free], *of_a[1:], *products[: free * down]]
    for j in range(free, across):
        lines += [of_b[j], *products[j * down : (j + 1) * down]]
    return lines

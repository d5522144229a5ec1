"""Kernels for CPUs that have more than this one: built for theirs, then run here, with code in place of instructions.

TVM makes LLVM IR for the target that a test names. Where this CPU lacks some of its features, that IR is compiled for
this CPU instead: LLVM splits vectors by itself, and each `llvm.x86.avx512…`, which this CPU has no instruction for,
becomes a function that computes the same. `tests/schedules/cpu/tiles.py` does it for tile registers.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from relaxc.service import machine

__all__ = ["code_to_be_read", "install", "runs_here"]

_BUILD = "target.build.llvm"
_FEATURES = ("avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avxvnni")
_ATTRIBUTES = re.compile(r'"target-(?:cpu"="[^"]*"|features"(?:="[^"]*")?)')
_MCPU, _MATTR = re.compile(r"(\\22mcpu\\22:\\22)[^\\]*"), re.compile(r",\\22mattr\\22:\[[^\]]*\]")
_ROUNDED = re.compile(r"fptrunc (?:[a-z]+ )*?(<\d+ x float>|float) (\S+) to (<\d+ x bfloat>|bfloat)")
_DECLARED = re.compile(r"^declare [^@]*?(<[^>]*>) @(llvm\.x86\.avx512[\w.]*)\((.*)\).*$", re.MULTILINE)


_to_be_read = False


@contextmanager
def code_to_be_read() -> Iterator[None]:
    """Have code stay as it is for its own CPU: what is built inside is looked at, and not run."""
    global _to_be_read
    _to_be_read = True
    try:
        yield
    finally:
        _to_be_read = False


def install() -> None:
    """Have TVM in this process build code that runs here for CPUs that have more; other code stays as it is."""
    import tvm_ffi

    build = tvm_ffi.get_global_func(_BUILD)

    def built(module: Any, target: Any) -> Any:
        made = build(module, target)
        return made if _to_be_read or runs_here(target) else _for_this_cpu(made)

    tvm_ffi.register_global_func(_BUILD, built, override=True)


def runs_here(target: Any) -> bool:
    """Return whether this CPU has each feature of the vectors of a target, or is of another architecture."""
    import tvm

    if not str(target.attrs.get("mtriple", "x86")).startswith("x86") or machine.cpu().arch != "x86_64":
        return True
    has = tvm.get_global_func("target.target_has_feature")
    return all(name in machine.host_features() for name in _FEATURES if has(name, target))


def _for_this_cpu(made: Any) -> Any:
    import tvm

    here = "x86-64-v3" if {"avx2", "fma"} <= machine.host_features() else "x86-64-v2"
    text = _ATTRIBUTES.sub(f'"target-cpu"="{here}"', made.inspect_source("ll"))
    text = _MATTR.sub("", _MCPU.sub(rf"\g<1>{here}", text))
    text = _DECLARED.sub(lambda found: _stand_in(*found.groups()), text)
    text = text.replace("@llvm.x86.avx512", "@emulated.avx512")
    kinds = sorted({found[1] for found in _ROUNDED.finditer(text)})
    text = _ROUNDED.sub(lambda found: f"call {found[3]} @{_rounding(found[1])}({found[1]} {found[2]})", text)
    text = "\n".join([text, *map(_rounded, kinds)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.ll"
        path.write_text(_with_declarations(text), encoding="utf-8")
        return tvm.runtime.load_module(str(path))


def _rounding(floats: str) -> str:
    return f"emulated.bfloat.{''.join(filter(str.isdigit, floats))}"


def _rounded(floats: str) -> str:
    """A function from float32 to the nearest bfloat16, in place of a call of one that is in no library here."""
    ints, bits, low = (floats.replace("float", kind) for kind in ("i32", "i16", "bfloat"))
    lines = [
        f"%i = bitcast {floats} %x to {ints}",
        f"%high = lshr {ints} %i, {_splat(floats, 'i32 16')}",
        f"%odd = and {ints} %high, {_splat(floats, 'i32 1')}",
        f"%half = add {ints} %odd, {_splat(floats, 'i32 32767')}",
        f"%up = add {ints} %i, %half",
        f"%near = lshr {ints} %up, {_splat(floats, 'i32 16')}",
        f"%quiet = or {ints} %high, {_splat(floats, 'i32 64')}",
        f"%nan = fcmp uno {floats} %x, %x",
        f"%kept = select {floats.replace('float', 'i1')} %nan, {ints} %quiet, {ints} %near",
        f"%short = trunc {ints} %kept to {bits}",
        f"%out = bitcast {bits} %short to {low}",
    ]
    body = "".join(f"  {line}\n" for line in lines)
    return f"define internal {low} @{_rounding(floats)}({floats} %x) alwaysinline {{\n{body}  ret {low} %out\n}}"


def _splat(floats: str, value: str) -> str:
    return f"splat ({value})" if "<" in floats else value.split()[1]


def _with_declarations(text: str) -> str:
    """The IR with what the functions of this module call."""
    lines = []
    for n in (4, 8, 16):
        floats, ints = f"<{n} x float>", f"<{n} x i32>"
        lines += [f"declare {floats} @llvm.{each}.v{n}f32({floats})" for each in ("floor", "rint")]
        lines.append(f"declare {floats} @llvm.ldexp.v{n}f32.v{n}i32({floats}, {ints})")
    names = {line: line[line.index("@") : line.index("(") + 1] for line in lines}
    needed = [
        line
        for line in lines
        if names[line] in text and not re.search(rf"^declare .*{re.escape(names[line])}", text, re.M)
    ]
    return "\n".join([text, *needed, ""])


def _stand_in(result: str, name: str, parameters: str) -> str:
    """A function that computes what an intrinsic does; it has its name, which is replaced everywhere."""
    family = re.sub(r"\.\d+$", "", name.removeprefix("llvm.x86.avx512"))
    given = re.sub(r" (?:immarg|noundef)", "", parameters)
    types = [each.strip() for each in re.split(r",", given)]
    lanes = int(result[1:].split()[0])
    assert family in _FAMILIES, f"nothing stands in for {name} on a CPU without it"
    lines = "".join(f"  {line}\n" for line in _FAMILIES[family](lanes, result, types))
    names = ", ".join(f"{kind} %{'abcdef'[at]}" for at, kind in enumerate(types))
    return f"define internal {result} @{name}({names}) alwaysinline {{\n{lines}  ret {result} %out\n}}"


def _grouped(
    bits: int, group: int, first: str, second: str, *, adds: bool
) -> Callable[[int, str, list[str]], list[str]]:
    """`out[i] (+)= sum over j of x[i, j] y[i, j]` of integers; `first` and `second` are `zext` or `sext`."""

    def lines(lanes: int, result: str, types: list[str]) -> list[str]:
        count = lanes * group
        low, wide = f"<{count} x i{bits}>", f"<{count} x i32>"
        x, y = ("b", "c") if adds else ("a", "b")
        made = [f"%x = bitcast {types[adds]} %{x} to {low}", f"%y = bitcast {types[adds + 1]} %{y} to {low}"]
        made += [f"%xw = {first} {low} %x to {wide}", f"%yw = {second} {low} %y to {wide}", f"%m = mul {wide} %xw, %yw"]
        return [*made, *_sums(lanes, group, "i32", "add", f"{result} {'%a' if adds else 'zeroinitializer'}")]

    return lines


def _sums(lanes: int, group: int, kind: str, add: str, start: str) -> list[str]:
    """`out[i] = start[i] + sum over j of m[i, j]`, the last first."""
    made, total = [], start
    for j in reversed(range(group)):
        places = ", ".join(f"i32 {i * group + j}" for i in range(lanes))
        whole = f"<{lanes * group} x {kind}>"
        made.append(f"%s{j} = shufflevector {whole} %m, {whole} poison, <{lanes} x i32> <{places}>")
        made.append(f"%{f't{j}' if j else 'out'} = {add} {total}, %s{j}")
        total = f"<{lanes} x {kind}> %t{j}"
    return made


def _dot_of_bfloat16(lanes: int, result: str, types: list[str]) -> list[str]:
    count, made = 2 * lanes, []
    for name, at in (("x", 1), ("y", 2)):
        made += [
            f"%{name}i = bitcast {types[at]} %{'abc'[at]} to <{count} x i16>",
            f"%{name}w = zext <{count} x i16> %{name}i to <{count} x i32>",
            f"%{name}s = shl <{count} x i32> %{name}w, splat (i32 16)",
            f"%{name} = bitcast <{count} x i32> %{name}s to <{count} x float>",
        ]
    made.append(f"%m = fmul <{count} x float> %x, %y")
    return [*made, *_sums(lanes, 2, "float", "fadd", f"{result} %a")]


def _scaled(lanes: int, result: str, types: list[str]) -> list[str]:
    """`a 2^floor(b)`; NaN where either is, and of more than a float32 holds what it becomes."""
    suffix, ints = f"v{lanes}f32", f"<{lanes} x i32>"
    return [
        f"%f = call {result} @llvm.floor.{suffix}({result} %b)",
        f"%over = fcmp ogt {result} %f, splat (float 300.0)",
        f"%f1 = select <{lanes} x i1> %over, {result} splat (float 300.0), {result} %f",
        f"%in = fcmp oge {result} %f1, splat (float -300.0)",
        f"%f2 = select <{lanes} x i1> %in, {result} %f1, {result} splat (float -300.0)",
        f"%i = fptosi {result} %f2 to {ints}",
        f"%l = call {result} @llvm.ldexp.{suffix}.v{lanes}i32({result} %a, {ints} %i)",
        f"%nan = fcmp uno {result} %b, %b",
        f"%out = select <{lanes} x i1> %nan, {result} %b, {result} %l",
    ]


def _reduced(lanes: int, result: str, types: list[str]) -> list[str]:
    """`a - floor(a)`, or `a - rint(a)` for an immediate of 0; 0 of infinities."""
    suffix = f"v{lanes}f32"
    return [
        f"%down = call {result} @llvm.floor.{suffix}({result} %a)",
        f"%near = call {result} @llvm.rint.{suffix}({result} %a)",
        "%mode = and i32 %b, 3",
        "%is_down = icmp eq i32 %mode, 1",
        f"%whole = select i1 %is_down, {result} %down, {result} %near",
        f"%rest = fsub {result} %a, %whole",
        f"%endless = fcmp oeq {result} %a, %whole",
        f"%out = select <{lanes} x i1> %endless, {result} zeroinitializer, {result} %rest",
    ]


def _fixed(lanes: int, result: str, types: list[str]) -> list[str]:
    """`a`, or `b` where the table has another answer than 0 for what `b` is: NaN, 0, 1, -inf, inf, below 0, above."""
    element, table = result.split()[-1].rstrip(">"), types[2]
    number = table.split()[-1].rstrip(">")
    infinity = "0x7FF0000000000000"
    below = infinity.replace("7FF", "FFF")
    kinds = [("uno", "%b", 0), ("oeq", "zeroinitializer", 2), ("oeq", f"splat ({element} 1.0)", 3)]
    kinds += [("oeq", f"splat ({element} {below})", 4), ("oeq", f"splat ({element} {infinity})", 5)]
    kinds += [("olt", "zeroinitializer", 6)]
    made, other = [], f"splat ({number} 28)"
    for at, (compare, against, kind) in enumerate(reversed(kinds)):
        made.append(f"%is{at} = fcmp {compare} {result} %b, {against}")
        made.append(f"%k{at} = select <{lanes} x i1> %is{at}, {table} splat ({number} {4 * kind}), {table} {other}")
        other = f"%k{at}"
    return [
        *made,
        f"%answers = lshr {table} %c, {other}",
        f"%answer = and {table} %answers, splat ({number} 15)",
        f"%keeps = icmp eq {table} %answer, zeroinitializer",
        f"%out = select <{lanes} x i1> %keeps, {result} %a, {result} %b",
    ]


def _widened(lanes: int, result: str, types: list[str]) -> list[str]:
    """fp16 as float32."""
    halves = f"<{lanes} x half>"
    return [f"%x = bitcast {types[0]} %a to {halves}", f"%out = fpext {halves} %x to {result}"]


def _narrowed(lanes: int, result: str, types: list[str]) -> list[str]:
    """float32 as the bits of fp16."""
    halves = f"<{lanes} x half>"
    return [f"%x = fptrunc {types[0]} %a to {halves}", f"%out = bitcast {halves} %x to {result}"]


_FAMILIES: Mapping[str, Callable[[int, str, list[str]], list[str]]] = {
    ".vpdpbusd": _grouped(8, 4, "zext", "sext", adds=True),
    ".vpdpwssd": _grouped(16, 2, "sext", "sext", adds=True),
    ".pmaddw.d": _grouped(16, 2, "sext", "sext", adds=False),
    "bf16.dpbf16ps": _dot_of_bfloat16,
    ".mask.scalef.ps": _scaled,
    ".mask.reduce.ps": _reduced,
    ".mask.vcvtph2ps": _widened,
    ".mask.vcvtps2ph": _narrowed,
    ".mask.fixupimm.ps": _fixed,
    ".mask.fixupimm.pd": _fixed,
}
"""Vectors of `lanes`, the type of the result, those of the operands `a`, `b`, … → lines that end with `%out`."""

"""bfloat16 on CPUs: two passes, which round by an instruction, keep buffers in 16 bits, and multiply pairs.

`KeepBrainFloats` stands before BF16ComputeLegalize, which rounds in five operations, and has all that a PrimFunc
allocates in float32. `CallBrainFloats` stands behind VectorizeLoop, where the number of lanes is known, and brings
along LLVM IR: TVM takes bfloat16 for no operand of an intrinsic.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op

from relaxc.schedules.cpu.common.dot_product import PAIRED
from relaxc.schedules.ir import tir

__all__ = ["CallBrainFloats", "KeepBrainFloats", "register_operators"]

_BRAIN, _BITS = "bfloat16", "uint16"
_ROUND = "relaxc.bfloat16_bits"
_NAN = 0x7FC0


def register_operators() -> None:
    """Make our operator known to TVM; to do so again changes nothing."""
    if _ROUND in {str(name) for name in Op.list_op_names()}:
        return
    tvm.get_global_func("ir.RegisterOp")(_ROUND, "The bits of a float32 rounded to bfloat16")
    operator = Op.get(_ROUND)
    operator.set_attr("TVectorizable", True)
    operator.set_attr("TCallEffectKind", Op.get("tirx.exp").get_attr("TCallEffectKind"))
    operator.set_attr("TScriptPrinterName", "relaxc_bfloat16_bits")


def _is_for_cpu(func: Any) -> bool:
    target = None if func.attrs is None else func.attrs.get("target")
    return target is not None and str(target.kind.name) == "llvm"


def _has_instruction(func: Any) -> bool:
    return bool(tvm.get_global_func("target.target_has_feature")("avx512bf16", func.attrs.get("target")))


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.KeepBrainFloats")
class KeepBrainFloats:
    """Has each store to a buffer of bfloat16 round its value's bits, and each such buffer within keep them.

        C[i] = bfloat16(x)         →   C[i] = reinterpret(bfloat16, bits(x))
        alloc t: bfloat16; t[i]    →   alloc t: uint16; reinterpret(bfloat16, t[i])
        let v = float32(A[i])      →   let v = reinterpret(float32, bits of A[i] << 16)

    `bits` is an operator of ours where the CPU has an instruction, else arithmetic; NaN stays NaN.
    """

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        if not _is_for_cpu(func) or not any(_is_brain(each) for each in _buffers(func)):
            return func
        return func.with_body(_Keeper(by_instruction=_has_instruction(func)).body(func.body))


def _is_brain(buffer: Any) -> bool:
    return str(buffer.dtype) == _BRAIN


def _buffers(func: Any) -> list[Any]:
    allocated = [each.buffer for each in tir.collect(func.body, tirx.AllocBuffer)]
    return [*(param for param in func.params if tirx.is_buffer_var(param)), *allocated]


class _Keeper:
    def __init__(self, *, by_instruction: bool) -> None:
        self._by_instruction = by_instruction
        self._kept: dict[Any, Any] = {}

    def body(self, body: Any) -> Any:
        """Return the statement with all its stores of bfloat16 rewritten."""
        for allocation in tir.collect(body, tirx.AllocBuffer):
            old = allocation.buffer
            if _is_brain(old):
                self._kept[old] = tirx.decl_buffer(old.shape, _BITS, old.name, scope=old.scope())
        load = type(tirx.BufferLoad(tirx.decl_buffer((1,)), [0]))
        kinds = [(tirx.BufferStore, self._store), (load, self._load), (tirx.AllocBuffer, self._allocation)]
        kinds.append((tirx.Bind, _with_widened_bits))
        kinds.append((Call, _address))
        return tvm_ffi.structural_map(body, kinds)

    def _allocation(self, allocation: Any) -> Any:
        kept = self._kept.get(allocation.buffer)
        return allocation if kept is None else tirx.AllocBuffer(kept, allocation.annotations)

    def _load(self, load: Any) -> Any:
        kept = self._kept.get(load.source)
        return load if kept is None else tirx.reinterpret(_dtype(load), tirx.BufferLoad(kept, load.indices))

    def _store(self, store: Any) -> Any:
        if not _is_brain(store.buffer):
            return store
        kept = self._kept.get(store.buffer)
        if kept is not None:
            return tirx.BufferStore(kept, self._bits(store.value), store.indices)
        return tirx.BufferStore(store.buffer, tirx.reinterpret(_BRAIN, self._bits(store.value)), store.indices)

    def _bits(self, value: Any) -> Any:
        """The bits of a value of bfloat16; what only moves such values is not widened for it."""
        name = _name(value)
        if name == "reinterpret" and str(value.args[0].ty.dtype) == _BITS:
            return value.args[0]
        if name == "if_then_else":
            return tirx.if_then_else(value.args[0], *map(self._bits, value.args[1:]))
        if isinstance(value, tirx.Select):
            return tirx.Select(value.condition, self._bits(value.true_value), self._bits(value.false_value))
        if isinstance(value, tirx.Cast):
            return self._rounded(tirx.Cast("float32", value.value) if _dtype(value.value) != "float32" else value.value)
        if isinstance(value, tirx.FloatImm) and float(value) == 0.0:
            return tirx.const(0, _BITS)
        if tir.loads(value) and value.same_as(tir.loads(value)[0]):
            return tirx.reinterpret(_BITS, value)
        return self._rounded(tirx.Cast("float32", value))

    def _rounded(self, value: Any) -> Any:
        if self._by_instruction:
            return tirx.call_intrin(_BITS, Op.get(_ROUND), value)
        bits = tirx.reinterpret("uint32", value)
        one, half, shift = (tirx.const(number, "uint32") for number in (1, 0x7FFF, 16))
        even = tirx.Cast(_BITS, tirx.shift_right(bits + half + (tirx.shift_right(bits, shift) & one), shift))
        return tirx.Select(tir.is_nan(value), tirx.const(_NAN, _BITS), even)


def _with_widened_bits(bind: Any) -> Any:
    """A binding without casts of bfloat16: BF16StorageLegalize leaves them as they are, of what then are integers."""
    value = tvm_ffi.structural_map(bind.value, (tirx.Cast, _widened))
    return bind if value.same_as(bind.value) else tirx.Bind(bind.var, value)


def _widened(cast: Any) -> Any:
    if _dtype(cast.value) != _BRAIN:
        return cast
    bits = tirx.Cast("uint32", tirx.reinterpret(_BITS, cast.value))
    wide = tirx.reinterpret("float32", tirx.shift_left(bits, tirx.const(16, "uint32")))
    return wide if _dtype(cast) == "float32" else tirx.Cast(_dtype(cast), wide)


def _address(call: Any) -> Any:
    """The address of an element whose load has become that of its bits."""
    if _name(call) != "address_of" or _name(call.args[0]) != "reinterpret":
        return call
    return tirx.address_of(call.args[0].args[0])


def _name(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", "")).removeprefix("tirx.")


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


@tirx.transform.prim_func_pass(opt_level=0, name="relaxc.CallBrainFloats")
class CallBrainFloats:
    """Brings along the functions by which a PrimFunc rounds to bfloat16 and multiplies pairs of such numbers."""

    def transform_function(self, func: Any, module: Any, context: Any) -> Any:
        """Rewrite one PrimFunc."""
        del module, context
        if not _is_for_cpu(func):
            return func
        code: dict[str, str] = {}
        kinds = [(Call, lambda call: _called(call, code)), (tirx.Broadcast, _spread)]
        body = tvm_ffi.structural_map(func.body, kinds)
        if code:
            text = "\n".join(code[name] for name in sorted(code))
            body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
        return func.with_body(body)


def _spread(broadcast: Any) -> Any:
    """Return lanes of one bfloat16 as lanes of its bits: BF16StorageLegalize stores no others."""
    value = broadcast.value
    if _name(value) != "reinterpret" or _dtype(value) != _BRAIN:
        return broadcast
    bits = tirx.Broadcast(value.args[0], broadcast.lanes)
    return tirx.reinterpret(f"{_BRAIN}x{int(broadcast.lanes)}", bits)


def _called(call: Any, code: dict[str, str]) -> Any:
    if _name(call) == _ROUND:
        lanes = int(_dtype(call).partition("x")[2] or 1)
        name = f"relaxc_bfloat16_{lanes}"
        code[name] = _rounding(name, lanes)
        return tirx.call_pure_extern(_dtype(call), name, call.args[0])
    if _name(call) == "call_pure_extern":
        name = str(call.args[0].value)
        if name.startswith(PAIRED):
            code[name] = _pairs(name, int(_dtype(call).partition("x")[2]))
    return call


def _rounding(name: str, lanes: int) -> str:
    floats, brains, bits = (f"<{lanes} x {kind}>" if lanes > 1 else kind for kind in ("float", "bfloat", "i16"))
    return f"""define {bits} @{name}({floats} %x) {{
  %rounded = fptrunc {floats} %x to {brains}
  %bits = bitcast {brains} %rounded to {bits}
  ret {bits} %bits
}}"""


def _pairs(name: str, lanes: int) -> str:
    """The function `name`, which begins with PAIRED, for `lanes` sums."""
    intrinsic = name.removeprefix(PAIRED)
    sums, words, pairs = f"<{lanes} x float>", f"<{lanes} x i32>", f"<{2 * lanes} x bfloat>"
    if intrinsic.startswith("llvm.aarch64."):
        intrinsic += f".v{lanes}f32.v{2 * lanes}bf16"
    return f"""declare {sums} @{intrinsic}({sums}, {pairs}, {pairs})
define {sums} @{name}({sums} %sums, {words} %a, {words} %b) {{
  %left = bitcast {words} %a to {pairs}
  %right = bitcast {words} %b to {pairs}
  %all = call {sums} @{intrinsic}({sums} %sums, {pairs} %left, {pairs} %right)
  ret {sums} %all
}}"""

"""Convolutions on blocked layouts: `NCHW[v]c` for as much of the graph as takes it, weights packed at compile time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm
from tvm import IRModule, relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from schedules.cpu import planning
from schedules.cpu.conv import blocked_compute as compute
from schedules.hardware import Cpu
from schedules.operators import Conv2d, Depthwise2d, Pool2d
from schedules.plan import Planner
from service.passes.common.epilogue import Readers, epilogue_of
from service.passes.common.images import (
    BINARY,
    ZERO_KEEPING_UNARY,
    channels_of,
    count_reads,
    ints,
    is_float32_image,
    is_pixel,
    is_static_image,
    pair,
    same_batch,
    sides,
)
from service.passes.common.rewrite import is_tensor_constant, op_name, static_shape
from service.passes.kernels.blocked_resize import bilinear
from service.passes.kernels.blocked_transposed import Phases
from service.passes.layout.blocked_weights import pack_broadcast
from service.passes.report import LayoutDecision, OptimizeReport

__all__ = ["BlockChannels"]

_BITS = 32
"""Of an element of the images that are blocked."""

_INJECTIVE, _OUT_FUSABLE, _OPAQUE = 2, 4, 8
"""TVM's patterns for fusion. One that is injective is not fused behind a contraction: that of one pixel is computed
once, and not for each element of the image that it is multiplied with."""


@tvm.transform.module_pass(opt_level=0, name="BlockChannels")
class BlockChannels:
    """Float32 2-D convolutions with constant weights compute on tensors of `[N, C/v, H, W, v]`, v a vector's lanes.

        y = conv2d(x, W); z = relu(y + b)   →   p = pack(x); z' = relu(conv2d_blocked(p, W') + b'); z = unpack(z')

    The blocked form is kept through elementwise operators, concatenation of channels, pooling and means over H and W;
    `unpack` comes where something else reads the value. W' and b' are packed here. Channels are filled up with zeros to
    whole vectors.
    """

    def __init__(self, report: OptimizeReport, cpu: Cpu, planner: Planner | None = None) -> None:
        self.report = report
        self.cpu = cpu
        self.planner = planner or planning.Defaults(cpu)
        self.lanes = cpu.lanes(_BITS)

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with blocked convolutions; the same object if it has none that can be."""
        gvar = module.get_global_var("main")
        blocker = _Blocker(module, self.cpu, self.planner)
        function = blocker.visit_expr(module[gvar])
        if not blocker.convolutions:
            return module
        module = blocker.builder_.get()
        module.update_func(module.get_global_var("main"), relax.analysis.remove_all_unused(function))
        self.report.layout = LayoutDecision(
            f"NCHW{self.lanes}c",
            f"{blocker.convolutions} convolutions blocked, {blocker.packs} packs and {blocker.unpacks} unpacks",
        )
        return module


@dataclass(frozen=True)
class _Blocked:
    """A value in blocked form, of `channels` channels in `[N, ceil(channels / v), H, W, v]`."""

    var: relax.Var
    channels: int


@mutator
class _Blocker(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    def __init__(self, module: IRModule, cpu: Cpu, planner: Planner) -> None:
        super().__init__(module)
        self.cpu = cpu
        self.planner = planner
        self.lanes = cpu.lanes(_BITS)
        self.readers = Readers(module["main"])
        self.bound: relax.Var | None = None
        self.blocked: dict[Any, _Blocked] = {}
        self.gated: dict[Any, tuple[relax.Var, relax.Var]] = {}
        """Products of an image and a value a channel (squeeze and excite), which a convolution can take apart."""
        self.reads = count_reads(module["main"])
        self.packed: dict[Any, relax.Var] = {}
        self.convolutions = self.packs = self.unpacks = 0
        self.rules: dict[str, Callable[[relax.Call], _Blocked | None]] = {
            "relax.nn.conv2d": self._conv2d,
            "relax.nn.conv2d_transpose": self._transposed,
            "relax.nn.max_pool2d": partial(self._pool, "max"),
            "relax.nn.avg_pool2d": partial(self._pool, "avg"),
            "relax.nn.adaptive_avg_pool2d": self._adaptive,
            "relax.mean": partial(self._over_pixels, "avg"),
            "relax.max": partial(self._over_pixels, "max"),
            "relax.concat": self._concat,
            "relax.take": self._take,
            "relax.image.resize2d": self._resize,
            "relax.divide": self._divide,
            **dict.fromkeys(ZERO_KEEPING_UNARY, self._unary),
            **dict.fromkeys(BINARY, self._binary),
        }

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call, self.bound = binding.value, binding.var
        if isinstance(binding.var, relax.DataflowVar) and is_float32_image(call):
            rule = self.rules.get(op_name(call))
            result = rule(call) if rule else None
            if result is not None:
                self.blocked[binding.var] = result
                return
        super().visit_var_binding_(binding)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        found = self.blocked.get(var)
        if found is None:
            return super().visit_dataflow_var_(var)
        if var not in self.packed:
            unpack = partial(compute.unpack_channels, channels=found.channels)
            self.packed[var] = self._te(unpack, found.var, name="unpack_channels")
            self.unpacks += 1
        return self.packed[var]

    def _te(self, function: Callable[..., Any], *args: relax.Expr, name: str, **attrs: Any) -> relax.Var:
        call = self.builder_.call_te(function, *args, primfunc_name_hint=name, primfunc_attrs=attrs or None)
        return self.builder_.emit(call)

    def _pack(self, expr: relax.Expr) -> relax.Var:
        """The blocked form of an image, packed if it has none; an image is packed once."""
        found = self.blocked.get(expr)
        if found is not None:
            return found.var
        plain = self.visit_expr(expr)
        if plain not in self.packed:
            self.packed[plain] = self._te(partial(compute.pack_channels, lanes=self.lanes), plain, name="pack_channels")
            self.packs += 1
        return self.packed[plain]

    def _conv2d(self, call: relax.Call) -> _Blocked | None:
        data, weight = call.args
        attrs, shape = call.attrs, static_shape(weight)
        if not is_tensor_constant(weight) or shape is None or not is_static_image(data):
            return None
        if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW") or str(weight.ty.dtype) != "float32":
            return None
        op = self._operator(data, shape, attrs)
        array = weight.value.numpy()
        if op.groups == op.channels == op.filters and shape[1] == 1:
            depthwise = Depthwise2d(channels=self._filled(op.channels), epilogue=op.epilogue, **_geometry(op))
            return _Blocked(self._planned(depthwise, array, self._pack(data)), op.filters)
        if not planning.is_blockable(op, self.cpu):
            return None
        filters, op = op.filters, op.in_blocks(self.lanes)
        source = self.visit_expr(data) if op.plain else self._pack(data)
        operands = [source]
        if source in self.gated and self.reads[data] == 1 and op.groups == 1:
            image, gate = self.gated[source]
            gated = replace(op, gated=True)
            if self.planner.plan(op).template == self.planner.plan(gated).template:
                op, operands = gated, [image, gate]
        return _Blocked(self._planned(op, array, *operands), filters)

    def _operator(self, data: relax.Expr, weight: tuple[int, ...], attrs: Any) -> Conv2d:
        """What a convolution of `data` with a weight of this shape is; its image stays plain if of few channels."""
        batch, channels, height, width = data.ty.shape
        return Conv2d(
            batch=int(getattr(batch, "value", 0)),
            channels=int(channels),
            height=int(height),
            width=int(width),
            filters=weight[0],
            kernel=(weight[2], weight[3]),
            strides=pair(attrs.strides),
            padding=sides(attrs.padding),
            dilation=pair(attrs.dilation),
            groups=int(attrs.groups),
            plain=int(channels) * 2 <= self.lanes and data not in self.blocked,
            epilogue=epilogue_of(self.readers, self.bound),
        )

    def _filled(self, channels: int) -> int:
        """As many channels as their blocks have."""
        return channels + -channels % self.lanes

    def _planned(self, op: Conv2d | Depthwise2d, weight: Any, image: relax.Expr, *gates: relax.Expr) -> relax.Var:
        """The convolution as its plan says, with the weight packed for it."""
        plan = self.planner.plan(op)
        self.convolutions += 1
        packed = relax.const(planning.pack(plan, weight))
        return self._te(planning.computation(plan), image, packed, *gates, name=planning.kernel_name(plan))

    def _transposed(self, call: relax.Call) -> _Blocked | None:
        (data, weight), attrs = call.args, call.attrs
        if not is_tensor_constant(weight) or not is_static_image(data) or str(weight.ty.dtype) != "float32":
            return None
        layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout
        if layouts != ("NCHW", "IOHW", "NCHW") or {int(attrs.groups), *ints(attrs.dilation, 2)} != {1}:
            return None
        taps = weight.value.numpy()
        phases = Phases.of(list(data.ty.shape)[2:], list(call.ty.shape)[2:], taps, attrs)
        op = phases.operator(int(getattr(data.ty.shape[0], "value", 0)), channels_of(data), self.lanes)
        result = self._planned(op, phases.weight(taps, self.lanes), self._pack(data))
        result = self._te(phases.interleave, result, name="interleave", op_pattern=_OUT_FUSABLE)
        return _Blocked(result, phases.channels)

    def _pool(self, kind: str, call: relax.Call) -> _Blocked | None:
        (data,), attrs = call.args, call.attrs
        if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW") or attrs.ceil_mode:
            return None
        return self._windows(
            data,
            kind=kind,
            kernel=ints(attrs.pool_size, 2),
            strides=pair(attrs.strides),
            dilation=ints(attrs.dilation, 2),
            padding=sides(attrs.padding),
            counts_padding=bool(attrs.count_include_pad),
        )

    def _adaptive(self, call: relax.Call) -> _Blocked | None:
        (data,), attrs = call.args, call.attrs
        if data not in self.blocked or (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
            return None
        sizes, bins = ints(list(data.ty.shape)[2:], 2), ints(list(call.ty.shape)[2:], 2)
        if any(size % count for size, count in zip(sizes, bins, strict=True)):
            return None
        kernel = tuple(size // count for size, count in zip(sizes, bins, strict=True))
        return self._image("avg", data) if bins == (1, 1) else self._windows(data, "avg", kernel=kernel, strides=kernel)

    def _windows(self, data: relax.Expr, kind: str, **geometry: Any) -> _Blocked | None:
        if data not in self.blocked:
            return None
        behind = epilogue_of(self.readers, self.bound)
        op = Pool2d(reduce=kind, epilogue=behind, **self._sizes(data), **geometry)
        return self._pooled(op, data, _OUT_FUSABLE)

    def _over_pixels(self, kind: str, call: relax.Call) -> _Blocked | None:
        (data,), attrs = call.args, call.attrs
        if data not in self.blocked or not attrs.keepdims or sorted(int(a) % 4 for a in attrs.axis or ()) != [2, 3]:
            return None
        return self._image(kind, data)

    def _image(self, kind: str, data: relax.Expr) -> _Blocked:
        op = Pool2d(reduce=kind, whole=True, kernel=pair(list(data.ty.shape)[2:]), **self._sizes(data))
        return self._pooled(op, data, _OPAQUE)

    def _sizes(self, data: relax.Expr) -> dict[str, Any]:
        """Those of a blocked image, its channels filled up to whole blocks."""
        batch, _, height, width = data.ty.shape
        channels = self._filled(self.blocked[data].channels)
        return {
            "batch": int(getattr(batch, "value", 0)),
            "channels": channels,
            "height": int(height),
            "width": int(width),
        }

    def _pooled(self, op: Pool2d, data: relax.Expr, op_pattern: int) -> _Blocked:
        plan, found = self.planner.plan(op), self.blocked[data]
        result = self._te(planning.computation(plan), found.var, name=planning.kernel_name(plan), op_pattern=op_pattern)
        return _Blocked(result, found.channels)

    def _unary(self, call: relax.Call) -> _Blocked | None:
        data, *rest = call.args
        if data not in self.blocked:
            return None
        found = self.blocked[data]
        return _Blocked(self.builder_.emit(relax.Call(call.op, [found.var, *rest], call.attrs)), found.channels)

    def _concat(self, call: relax.Call) -> _Blocked | None:
        """Of whole blocks along the channels, most of them blocked already: the last one may end within a block."""
        fields = self._fields(call.args[0])
        if call.attrs.axis is None or int(call.attrs.axis) % 4 != 1 or not all(map(is_static_image, fields)):
            return None
        counts = [channels_of(field) for field in fields]
        blocked = sum(count for field, count in zip(fields, counts, strict=True) if field in self.blocked)
        if any(count % self.lanes for count in counts[:-1]) or 2 * blocked < sum(counts):
            return None
        return _Blocked(self.builder_.emit(relax.op.concat([self._pack(field) for field in fields], 1)), sum(counts))

    def _take(self, call: relax.Call) -> _Blocked | None:
        """Rows or columns, as upsampling takes each of them twice."""
        data, places = call.args
        if data not in self.blocked or call.attrs.axis is None or int(call.attrs.axis) % 4 < 2:
            return None
        found, axis = self.blocked[data], int(call.attrs.axis) % 4
        taken = relax.op.take(found.var, places, axis, mode=call.attrs.mode)
        return _Blocked(self.builder_.emit(taken), found.channels) if is_tensor_constant(places) else None

    def _resize(self, call: relax.Call) -> _Blocked | None:
        data = call.args[0]
        if data not in self.blocked or not is_static_image(call):
            return None
        function = bilinear(call.attrs, ints(list(call.ty.shape)[2:], 2), self.lanes)
        found = self.blocked[data]
        return function and _Blocked(self._te(function, found.var, name="resize2d"), found.channels)

    def _fields(self, expr: relax.Expr) -> list[relax.Expr]:
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
        return list(value.fields) if isinstance(value, relax.Tuple) else []

    def _divide(self, call: relax.Call) -> _Blocked | None:
        """Of whole blocks only: lanes past the last channel would be 0 / 0."""
        return self._binary(call) if channels_of(call) % self.lanes == 0 else None

    def _binary(self, call: relax.Call) -> _Blocked | None:
        known = next((self.blocked[arg] for arg in call.args if arg in self.blocked), None)
        if known is None or channels_of(call) != known.channels:
            return None
        operands = [self._operand(arg, known.channels) for arg in call.args]
        if None in operands:
            return None
        gates = [i for i, arg in enumerate(call.args) if not is_tensor_constant(arg) and is_pixel(arg)]
        if len(gates) != 1 or is_pixel(call) or not all(same_batch(arg, call) for arg in call.args):
            return _Blocked(self.builder_.emit(relax.Call(call.op, operands, call.attrs)), known.channels)
        name = op_name(call).removeprefix("relax.")
        result = self._te(getattr(topi, name), *operands, name=name, op_pattern=_INJECTIVE)
        if name == "multiply":
            self.gated[result] = operands[1 - gates[0]], operands[gates[0]]
        return _Blocked(result, known.channels)

    def _operand(self, arg: relax.Expr, channels: int) -> relax.Expr | None:
        """`arg` so that it broadcasts in blocked form, or None."""
        if arg in self.blocked:
            return self.blocked[arg].var if self.blocked[arg].channels == channels else None
        if is_tensor_constant(arg):
            array = arg.value.numpy()
            return relax.const(array.reshape(())) if array.size == 1 else pack_broadcast(array, channels, self.lanes)
        return self._pack(arg) if is_static_image(arg) and channels_of(arg) == channels else None


def _geometry(op: Conv2d) -> dict[str, Any]:
    names = ("batch", "height", "width", "kernel", "strides", "padding", "dilation")
    return {name: getattr(op, name) for name in names}

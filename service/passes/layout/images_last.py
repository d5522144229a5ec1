"""Images in NHWC on GPUs whose templates read them so: convolutions, pooling and what is between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from schedules.cuda.conv import compute
from schedules.cuda.conv.compute import VECTOR, Windows
from schedules.cuda.groups.compute import group_norm
from service.passes.common.constants import array_of, constant
from service.passes.common.images import BINARY, ZERO_KEEPING_UNARY, count_reads, elements_of_windows, pair, sides
from service.passes.common.rewrite import is_tensor_constant, op_name, static_shape
from service.passes.precision.dtypes import is_low, is_widening
from service.passes.report import LayoutDecision, OptimizeReport

__all__ = ["ImagesLast"]

_TO_NHWC, _TO_NCHW = [0, 2, 3, 1], [0, 3, 1, 2]
_UNARY = ZERO_KEEPING_UNARY | {f"relax.{name}" for name in ("exp", "rsqrt", "nn.hardswish", "nn.softplus")}
_OUT_FUSABLE = 4
"""TVM's pattern of a contraction, behind which elementwise operators are fused."""
_ELEMENTWISE, _INJECTIVE = 0, 2
_ROW = 64
"""Elements of a row of the kernel that are one step of the sum."""
_MAX_STEP = 8
_MAX_TAPS = 64
_MAX_GROUP = 256
"""Channels of a group."""


@tvm.transform.module_pass(opt_level=0, name="ImagesLast")
class ImagesLast:
    """2-D convolutions of 16-bit images with constant weights compute on `[N, H, W, C]`.

        y = conv2d(x, W); z = relu(y + b)   →   p = permute(x); z' = relu(conv2d_nhwc(p, W') + b'); z = permute⁻¹(z')

    NHWC is kept through elementwise operators, casts, concatenation of channels, pooling and means over H and W; a
    permutation comes where something else reads the value. Weights are permuted here. Sizes are known, channels in
    multiples of 8; images of fewer than 8 channels are filled up to 8 and padded where they are permuted.
    Group norms are computed on NHWC too.
    """

    def __init__(self, report: OptimizeReport) -> None:
        self.report = report

    def transform_module(self, module: IRModule, _context: Any) -> IRModule:
        """Return the module with convolutions on NHWC, or as it was if it has none that can be."""
        gvar = module.get_global_var("main")
        walker = _Walker(module)
        walker.rules["relax.nn.group_norm"] = partial(walker.group_norm, reads=count_reads(module[gvar]))
        function = walker.visit_expr(module[gvar])
        if not walker.convolutions:
            return module
        module = walker.builder_.get()
        module.update_func(module.get_global_var("main"), relax.analysis.remove_all_unused(function))
        counts = f"{walker.convolutions} convolutions, {walker.permutations} permutations"
        self.report.layout = LayoutDecision("NHWC", counts)
        return module


@mutator
class _Walker(PyExprMutator):  # type: ignore[misc]  # tvm ships no types
    """Keeps, for variables of the old function, their NHWC form in the new one."""

    def __init__(self, module: IRModule) -> None:
        super().__init__(module)
        self.last: dict[Any, relax.Var] = {}
        self.narrow: dict[Any, relax.Var] = {}
        """The 16-bit form of NHWC values that are the same, widened."""
        self.first: dict[Any, relax.Var] = {}
        self.permuted: dict[Any, relax.Var] = {}
        self.convolutions = self.permutations = 0
        self.low = ""
        """The dtype of the convolutions seen so far."""
        self.rules: dict[str, Callable[[relax.Call], relax.Var | None]] = {
            "relax.nn.conv2d": self._conv2d,
            "relax.nn.max_pool2d": partial(self._pool, "max"),
            "relax.nn.avg_pool2d": partial(self._pool, "sum"),
            "relax.nn.adaptive_avg_pool2d": self._adaptive,
            "relax.mean": self._mean,
            "relax.concat": self._concat,
            "relax.astype": self._astype,
            **dict.fromkeys(_UNARY, self._unary),
            **dict.fromkeys((*BINARY, "relax.divide"), self._binary),
        }

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        rule = self.rules.get(op_name(call))
        result = rule(call) if rule else None
        if result is None:
            super().visit_var_binding_(binding)
        elif isinstance(binding.var, relax.DataflowVar) and call.ty.ndim == 4:
            self.last[binding.var] = result
        else:
            plain = self._plain(result, static_shape(call))
            super().visit_var_binding_(relax.VarBinding(binding.var, plain))

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        found = self.last.get(var)
        if found is None:
            return super().visit_dataflow_var_(var)
        if var not in self.first:
            self.first[var] = self.builder_.emit(self._plain(found, static_shape(var)))
        return self.first[var]

    def _plain(self, value: relax.Var, shape: tuple[int, ...] | None) -> relax.Expr:
        """The value in its old layout; of single pixels that is a reshape."""
        assert shape is not None
        if prod(_sizes(value)[1:3]) == 1:
            return relax.op.reshape(value, shape)
        self.permutations += 1
        return relax.op.permute_dims(value, _TO_NCHW)

    def _image(self, expr: relax.Expr) -> relax.Var:
        """The NHWC form of an NCHW value, permuted if it has none; once."""
        if expr in self.last:
            return self.last[expr]
        plain = self.visit_expr(expr)
        if plain not in self.permuted:
            n, c, h, w = _sizes(expr)
            same = relax.op.reshape(plain, (n, h, w, c)) if h * w == 1 else relax.op.permute_dims(plain, _TO_NHWC)
            self.permutations += h * w != 1
            self.permuted[plain] = self.builder_.emit(same)
        return self.permuted[plain]

    def _te(self, function: Callable[..., Any], *args: relax.Expr, name: str, pattern: int = _OUT_FUSABLE) -> relax.Var:
        attrs = {"op_pattern": pattern}
        return self.builder_.emit(self.builder_.call_te(function, *args, primfunc_name_hint=name, primfunc_attrs=attrs))

    def _cast(self, value: relax.Var, dtype: str) -> relax.Var:
        return value if str(value.ty.dtype) == dtype else self.builder_.emit(relax.op.astype(value, dtype))

    # ---- sums over pixels
    def group_norm(self, call: relax.Call, reads: Counter[Any]) -> relax.Var | None:
        """Return the norm of an image in NHWC, or None.

        A widened image is read in its 16 bits, and one that nothing else reads is stored so.
        """
        data, gamma, beta = call.args
        attrs, shape = call.attrs, static_shape(data)
        if shape is None or len(shape) != 4 or int(attrs.channel_axis) % 4 != 1 or shape[1] % VECTOR:
            return None
        width, axes = shape[1] // int(attrs.num_groups), {int(axis) % 4 for axis in attrs.axes}
        if axes - {1} != {2, 3} or width % 2 or width > _MAX_GROUP or prod(shape) >= 1 << 31:
            return None
        bound = self.lookup_binding(data) if isinstance(data, relax.Var) and data not in self.last else None
        image = self._image(bound.args[0] if bound is not None and is_widening(bound) else data)
        function = partial(group_norm, groups=int(attrs.num_groups), epsilon=float(attrs.epsilon))
        image = self.narrow.get(image, image)
        if data in self.last and self.low and reads[data] == 1 and str(image.ty.dtype) == "float32":
            image = self._cast(image, self.low)
        operands = (image, self.visit_expr(gamma), self.visit_expr(beta))
        return self._cast(self._te(function, *operands, name="group_norm"), str(call.ty.dtype))

    # ---- sums over windows
    def _conv2d(self, call: relax.Call) -> relax.Var | None:
        data, weight = call.args
        attrs, shape = call.attrs, static_shape(data)
        weight = self.lookup_binding(weight) if isinstance(weight, relax.Var) else weight
        if shape is None or not is_tensor_constant(weight) or not is_low(data) or data.ty.dtype != weight.ty.dtype:
            return None
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or "NCHW") != ("NCHW", "OIHW", "NCHW"):
            return None
        filters, depth, *kernel = _sizes(weight)
        top, left, _, right = sides(attrs.padding)
        windows = Windows("taps", pair(kernel), pair(attrs.strides), (top, left), pair(attrs.dilation))
        if filters % VECTOR or max(windows.strides) > _MAX_STEP:
            return None
        out_h, out_w = _sizes(call)[2:]
        array, groups = array_of(weight), int(attrs.groups)
        result = None
        if groups == shape[1] == filters and depth == 1:
            result = self._depthwise(data, array, windows, (out_h, out_w))
        elif groups == 1 and shape[1] % VECTOR == 0:
            result = self._dense(data, array, windows, (out_h, out_w))
        elif groups == 1 and shape[1] < VECTOR and kernel[1] * VECTOR <= _ROW and windows.dilation[1] == 1:
            result = self._of_few_channels(data, array, windows, (out_h, out_w), right)
        if result is None:
            return None
        self.convolutions += 1
        self.low = str(data.ty.dtype)
        return self._cast(result, str(call.ty.dtype))

    def _depthwise(self, data: relax.Expr, array: Any, windows: Windows, out: tuple[int, int]) -> relax.Var | None:
        if prod(windows.kernel) > _MAX_TAPS:
            return None
        packed = constant(np.ascontiguousarray(array[:, 0].transpose(1, 2, 0)))
        windows = Windows("depthwise", windows.kernel, windows.strides, windows.padding, windows.dilation)
        function = partial(compute.depthwise_conv2d, windows=windows, out=out)
        return self._te(function, self._image(data), packed, name="depthwise_conv2d")

    def _dense(self, data: relax.Expr, array: Any, windows: Windows, out: tuple[int, int]) -> relax.Var:
        if windows == Windows("taps", (1, 1), dilation=windows.dilation) and out == _sizes(data)[2:]:
            return self._te(compute.pointwise, self._image(data), constant(array[:, :, 0, 0]), name="conv2d")
        packed = constant(np.ascontiguousarray(array.transpose(2, 3, 0, 1)))
        return self._te(partial(compute.conv2d, windows=windows, out=out), self._image(data), packed, name="conv2d")

    def _of_few_channels(
        self, data: relax.Expr, array: Any, windows: Windows, out: tuple[int, int], right: int
    ) -> relax.Var:
        """The image gets 8 channels, and the padding of its lines: a row of the kernel is one piece of it then."""
        channels, left = array.shape[1], windows.padding[1]
        packed = np.pad(array.transpose(2, 0, 3, 1), ((0, 0), (0, 0), (0, 0), (0, VECTOR - channels)))
        windows = Windows("rows", windows.kernel, windows.strides, (windows.padding[0], 0), windows.dilation)
        width = max(_sizes(data)[3] + left + right, (out[1] - 1) * windows.strides[1] + windows.kernel[1])
        # What narrows the image does so here: a cast in another kernel would write it once more.
        bound = self.lookup_binding(data) if isinstance(data, relax.Var) else None
        wide = (
            bound.args[0] if bound is not None and op_name(bound) == "relax.astype" and data not in self.last else data
        )
        spread = partial(compute.spread, left=left, width=width + width % 2, dtype=str(data.ty.dtype))
        source = self.last.get(wide)
        if source is not None:
            source = self.builder_.emit(relax.op.permute_dims(source, _TO_NCHW))
        image = self._te(spread, self.visit_expr(wide) if source is None else source, name="spread", pattern=_INJECTIVE)
        function = partial(compute.rows_conv2d, windows=windows, out=out)
        return self._te(function, image, constant(np.ascontiguousarray(packed)), name="conv2d")

    def _pool(self, kind: str, call: relax.Call) -> relax.Var | None:
        (data,), attrs, shape = call.args, call.attrs, static_shape(call)
        source = self._source(data)
        if source is None or shape is None or attrs.layout != "NCHW" or (attrs.out_layout or "NCHW") != "NCHW":
            return None
        windows = Windows(
            kind, pair(attrs.pool_size), pair(attrs.strides), sides(attrs.padding)[:2], pair(attrs.dilation)
        )
        if prod(windows.kernel) > _MAX_TAPS or (kind == "sum" and attrs.ceil_mode):
            return None
        whole = _sizes(data)[2:] == windows.kernel and shape[2:] == (1, 1) and not any(windows.padding)
        if kind == "sum" and whole:
            return self._mean_of_pixels(source, str(call.ty.dtype))
        pooled = self._te(partial(compute.pool, windows=windows, out=(shape[2], shape[3])), source, name="pool2d")
        if kind == "sum":
            elements = elements_of_windows(windows, _sizes(data)[2:], shape[2:])
            count = np.array(float(prod(windows.kernel))) if attrs.count_include_pad else elements
            scale = (1.0 / count).reshape((1, *count.shape, 1) if count.ndim else ()).astype("float32")
            pooled = self.builder_.emit(relax.op.multiply(pooled, constant(scale)))
        return self._cast(pooled, str(call.ty.dtype))

    def _adaptive(self, call: relax.Call) -> relax.Var | None:
        (data,), attrs, shape = call.args, call.attrs, static_shape(call)
        source = self._source(data)
        if source is None or shape is None or attrs.layout != "NCHW" or shape[2:] != (1, 1):
            return None
        return self._mean_of_pixels(source, str(call.ty.dtype))

    def _mean(self, call: relax.Call) -> relax.Var | None:
        (data,), attrs = call.args, call.attrs
        source = self._source(data)
        if source is None or sorted(int(axis) % 4 for axis in attrs.axis or ()) != [2, 3]:
            return None
        return self._mean_of_pixels(source, str(call.ty.dtype))

    def _mean_of_pixels(self, source: relax.Var, dtype: str) -> relax.Var:
        count = prod(_sizes(source)[1:3])
        sums = self._te(compute.pixels, source, name="sum_of_pixels")
        return self._cast(self.builder_.emit(relax.op.multiply(sums, relax.const(1.0 / count, "float32"))), dtype)

    def _source(self, data: relax.Expr) -> relax.Var | None:
        """The 16-bit NHWC form of a value that has an NHWC form; None else, or where its channels fill no vectors."""
        found = self.last.get(data)
        if found is None or not self.low or _sizes(found)[3] % VECTOR:
            return None
        found = self.narrow.get(found, found)
        return found if is_low(found) else self._cast(found, self.low)

    # ---- elementwise
    def _unary(self, call: relax.Call) -> relax.Var | None:
        data, *rest = call.args
        if data not in self.last:
            return None
        return self.builder_.emit(relax.Call(call.op, [self.last[data], *rest], call.attrs))

    def _astype(self, call: relax.Call) -> relax.Var | None:
        result = self._unary(call)
        if result is not None and str(call.ty.dtype) == "float32":
            found = self.last[call.args[0]]
            self.narrow[result] = self.narrow.get(found, found)
        return result

    def _binary(self, call: relax.Call) -> relax.Var | None:
        if call.ty.ndim != 4 or not any(arg in self.last for arg in call.args):
            return None
        operands = [self._operand(arg) for arg in call.args]
        if any(operand is None for operand in operands):
            return None
        if op_name(call) == "relax.add" and all(self._is_wide_image(operand, call) for operand in operands):
            return self._sum_with_rounded(operands)
        return self.builder_.emit(relax.Call(call.op, operands, call.attrs))

    def _is_wide_image(self, value: relax.Expr, call: relax.Call) -> bool:
        """Whether it is an fp32 image of the size of the call, that is not the widened form of another."""
        is_image = prod(_sizes(value)) == prod(_sizes(call)) and not is_tensor_constant(value)
        return is_image and str(value.ty.dtype) == "float32" and value not in self.narrow and bool(self.low)

    def _sum_with_rounded(self, operands: list[relax.Expr]) -> relax.Var:
        """Of two images that are added one is written to memory, in 16 bits then: the later one, as FuseOps has it.

        The sum is one operator with the cast: FuseOps would put a cast of its own into the kernel that writes.
        """
        order = {var: index for index, var in enumerate(self.last.values())}
        kept, rounded = sorted(operands, key=lambda operand: order.get(operand, -1))
        return self._te(compute.mixed_sum, kept, self._cast(rounded, self.low), name="add", pattern=_ELEMENTWISE)

    def _operand(self, arg: relax.Expr) -> relax.Expr | None:
        """`arg` so that it broadcasts in NHWC, or None."""
        if arg in self.last:
            return self.last[arg]
        shape = static_shape(arg)
        if shape is None:
            return None
        if is_tensor_constant(arg):
            array = array_of(arg)
            return arg if array.size == 1 and array.ndim == 0 else constant(_last(array))
        return self._image(arg) if len(shape) == 4 else None

    def _concat(self, call: relax.Call) -> relax.Var | None:
        value = call.args[0]
        value = self.lookup_binding(value) if isinstance(value, relax.Var) else value
        fields = list(value.fields) if isinstance(value, relax.Tuple) else []
        if not fields or call.ty.ndim != 4 or call.attrs.axis is None or int(call.attrs.axis) % 4 != 1:
            return None
        if not any(field in self.last for field in fields) or any(static_shape(field) is None for field in fields):
            return None
        return self.builder_.emit(relax.op.concat([self._image(field) for field in fields], 3))


def _sizes(expr: relax.Expr) -> tuple[int, ...]:
    """Those of a value with an NHWC form: they are known."""
    shape = static_shape(expr)
    assert shape is not None
    return shape


def _last(array: Any) -> Any:
    """A constant that broadcasts with NCHW, as it broadcasts with NHWC."""
    return np.ascontiguousarray(array.reshape((1,) * (4 - array.ndim) + array.shape).transpose(_TO_NHWC))

"""Normalizations. Statistics of fp16 and bf16 tensors are computed in fp32, as the operators' `stash_type` says."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from relaxc.service.errors import ModelMalformed
from relaxc.service.frontend.onnx import dims as onnx_dims
from relaxc.service.frontend.onnx.node import Node, Refused, dtype_of
from relaxc.service.frontend.onnx.ops.common import aligned, cast, full_precision, relax_dim, reshaped, scalar
from relaxc.service.frontend.onnx.ops.reduce import lp_norm
from relaxc.service.frontend.onnx.ops.registry import op

__all__ = ["rms_norm"]


@op("BatchNormalization")
def _batch_norm(node: Node) -> Any:
    if node.attr("training_mode", 0):
        return _batch_norm_training(node)
    if node.attr("spatial", 1) != 1:
        raise Refused("spatial=0")
    dtype, wide = node.dtype(0), _widest(node)
    tensors = [node.emit(cast(node.tensor(index), wide)) for index in range(5)]
    result = relax.op.nn.batch_norm(*tensors, axis=1, epsilon=node.attr("epsilon", 1e-5), training=False)
    y = node.emit(relax.TupleGetItem(node.emit(result), 0))
    if y.ty.shape is None:  # channels that the data decides: the contract holds them to the statistics
        y = node.builder.match_cast(y, relax.TensorType([relax_dim(dim) for dim in node.shape(0)], wide))
    if node.output_count > 1:
        raise Refused("running statistics as outputs without training_mode")
    return cast(y, dtype)


def _widest(node: Node) -> str:
    dtypes = {node.dtype(index) for index in range(5)}
    return next(name for name in ("float64", "float32", "bfloat16", "float16") if name in dtypes)


def _batch_norm_training(node: Node) -> Any:
    """Statistics of this batch; the running ones move by `1 - momentum`."""
    x, dtype, rank = node.tensor(0), node.dtype(0), node.rank(0)
    wide = node.emit(cast(x, "float64" if dtype == "float64" else "float32"))
    axes = [axis for axis in range(rank) if axis != 1]
    mean, variance = _moments(node, wide, axes)
    shape = [node.shape(1)[0] if axis == 1 else 1 for axis in range(rank)]
    scale, bias = (reshaped(node, node.emit(cast(node.tensor(i), dtype_of(wide))), shape) for i in (1, 2))
    y = _normalized(node, wide, mean, variance, node.attr("epsilon", 1e-5))
    y = node.emit(relax.op.add(node.emit(relax.op.multiply(y, scale)), bias))
    results = [node.emit(cast(y, dtype))]
    momentum = node.attr("momentum", 0.9)
    for index, current in ((3, mean), (4, variance)):
        old = node.emit(cast(node.tensor(index), dtype_of(wide)))
        new = reshaped(node, current, node.shape(index))
        kept = node.emit(relax.op.multiply(old, scalar(momentum, old)))
        moved = node.emit(relax.op.multiply(new, scalar(1 - momentum, new)))
        results.append(node.emit(cast(node.emit(relax.op.add(kept, moved)), node.dtype(index))))
    return results


def _moments(node: Node, x: Any, axes: list[int]) -> tuple[Any, Any]:
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    apart = node.emit(relax.op.subtract(x, mean))
    return mean, node.emit(relax.op.mean(node.emit(relax.op.multiply(apart, apart)), axes, keepdims=True))


def _normalized(node: Node, x: Any, mean: Any, variance: Any, epsilon: float) -> Any:
    deviation = node.emit(relax.op.sqrt(node.emit(relax.op.add(variance, scalar(epsilon, x)))))
    return node.emit(relax.op.divide(node.emit(relax.op.subtract(x, mean)), deviation))


@op("LayerNormalization")
def _layer_norm(node: Node) -> Any:
    """Over the axes from `axis` on; the mean and the inverse deviation are outputs when asked for."""
    rank, shape = node.rank(0), node.shape(0)
    axis, epsilon = node.attr("axis", -1) % rank, node.attr("epsilon", 1e-5)
    axes = list(range(axis, rank))
    tensors = [node.tensor(0), node.tensor(1)]
    tensors.append(node.tensor(2) if node.has(2) else node.emit(relax.op.zeros_like(tensors[1])))
    whole = [node.shape_of(t) for t in tensors[1:]] == [shape[axis:]] * 2
    if whole and node.output_count == 1 and all(isinstance(dim, int) for dim in shape[axis:]):
        return full_precision(node, lambda x, s, b: relax.op.nn.layer_norm(x, s, b, axes, epsilon), *tensors)
    wide = [node.emit(cast(t, "float64" if node.dtype(0) == "float64" else "float32")) for t in tensors]
    mean, variance = _moments(node, wide[0], axes)
    y = node.emit(cast(_normalized(node, wide[0], mean, variance, epsilon), node.dtype(0)))
    y = node.emit(relax.op.multiply(*aligned(node, y, tensors[1])))
    y = node.emit(relax.op.add(*aligned(node, y, tensors[2])))
    deviation = node.emit(relax.op.sqrt(node.emit(relax.op.add(variance, scalar(epsilon, wide[0])))))
    inverse = node.emit(relax.op.divide(scalar(1, wide[0]), deviation))
    return (y, mean, inverse)[: node.output_count]


def rms_norm(node: Node, x: Any, scale: Any, axis: int, epsilon: float) -> Any:
    """Return `x / √(mean(x²) + ε) · scale` over the axes from `axis` on, in fp32."""
    shape, dtype = node.shape_of(x), dtype_of(x)
    axes = list(range(axis % len(shape), len(shape)))
    # TVM's operator fails to legalize over all axes.
    if axes[0] > 0 and node.shape_of(scale) == shape[axes[0] :] and all(isinstance(shape[a], int) for a in axes):
        return full_precision(node, lambda a, s: relax.op.nn.rms_norm(a, s, axes, epsilon), x, scale)
    wide = node.emit(cast(x, "float64" if dtype == "float64" else "float32"))
    square = node.emit(relax.op.mean(node.emit(relax.op.multiply(wide, wide)), axes, keepdims=True))
    deviation = node.emit(relax.op.sqrt(node.emit(relax.op.add(square, scalar(epsilon, wide)))))
    y = node.emit(cast(node.emit(relax.op.divide(wide, deviation)), dtype))
    return relax.op.multiply(*aligned(node, y, scale))


@op("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def _rms_norm(node: Node) -> Any:
    return rms_norm(node, node.tensor(0), node.tensor(1), node.attr("axis", -1), node.attr("epsilon", 1e-5))


@op("InstanceNormalization")
def _instance_norm(node: Node) -> Any:
    """Each channel of each batch entry by itself."""
    rank, epsilon = node.rank(0), node.attr("epsilon", 1e-5)
    shape = [1, *node.shape(1), *[1] * (rank - 2)]

    def normalize(x: Any, scale: Any, bias: Any) -> Any:
        mean, variance = _moments(node, x, list(range(2, rank)))
        y = _normalized(node, x, mean, variance, epsilon)
        y = node.emit(relax.op.multiply(y, reshaped(node, scale, shape)))
        return relax.op.add(y, reshaped(node, bias, shape))

    return full_precision(node, normalize, node.tensor(0), node.tensor(1), node.tensor(2))


@op("GroupNormalization")
def _group_norm(node: Node) -> Any:
    """Channels in `num_groups` groups; scale and bias are for groups before opset 21, for channels since."""
    shape, groups = node.shape(0), node.attr("num_groups")
    batch, channels, *spatial = shape
    if not isinstance(channels, int) or channels % groups:
        raise ModelMalformed(f"node {node.name!r} splits {channels} channels into {groups} groups", node=node.name)
    each = channels // groups
    inner = [groups, 1] if node.shape(1) == [groups] and node.opset < 21 else [groups, each]

    def normalize(x: Any, scale: Any, bias: Any) -> Any:
        grouped = reshaped(node, x, [batch, groups, each, onnx_dims.product(spatial)])
        mean, variance = _moments(node, grouped, [2, 3])
        y = _normalized(node, grouped, mean, variance, node.attr("epsilon", 1e-5))
        y = node.emit(relax.op.multiply(y, reshaped(node, scale, [1, *inner, 1])))
        return reshaped(node, node.emit(relax.op.add(y, reshaped(node, bias, [1, *inner, 1]))), shape)

    return full_precision(node, normalize, node.tensor(0), node.tensor(1), node.tensor(2))


@op("MeanVarianceNormalization")
def _mean_variance(node: Node) -> Any:
    axes = list(node.attr("axes", (0, 2, 3)))

    def normalize(x: Any) -> Any:
        mean, variance = _moments(node, x, axes)
        return _normalized(node, x, mean, variance, 1e-9)

    return full_precision(node, normalize, node.tensor(0))


@op("LpNormalization")
def _lp_normalization(node: Node) -> Any:
    """A vector of norm 0 stays 0."""
    axis = node.attr("axis", -1) % node.rank(0)

    def normalize(x: Any) -> Any:
        size = lp_norm(node, x, [axis], float(node.attr("p", 2)))
        safe = node.emit(relax.op.where(node.emit(relax.op.equal(size, scalar(0, x))), scalar(1, x), size))
        return relax.op.divide(x, safe)

    return full_precision(node, normalize, node.tensor(0))


@op("LRN")
def _local_response(node: Node) -> Any:
    """`x / (bias + alpha/size · Σ x²)^beta`, the sum over `size` neighbouring channels."""
    size = node.attr("size")
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    before = (size - 1) // 2

    def squares(data: te.Tensor) -> te.Tensor:
        tap = te.reduce_axis((0, size), name="tap")

        def element(n: Any, c: Any, *rest: Any) -> Any:
            place = c + tap - before
            inside = tirx.And(place >= 0, place < data.shape[1])
            value = data(n, tirx.max(tirx.min(place, data.shape[1] - 1), 0), *rest)
            return te.sum(tirx.if_then_else(inside, value * value, tirx.const(0, data.dtype)), axis=tap)

        return te.compute(data.shape, element, name="squares")

    def normalize(x: Any) -> Any:
        total = node.te(squares, x, primfunc_name_hint="lrn_squares")
        inner = node.emit(relax.op.multiply(total, scalar(alpha / size, x)))
        inner = node.emit(relax.op.add(inner, scalar(bias, x)))
        return relax.op.divide(x, node.emit(relax.op.power(inner, scalar(beta, x))))

    return full_precision(node, normalize, node.tensor(0))

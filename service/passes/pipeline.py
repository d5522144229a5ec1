"""The passes, in order: one literal list of phases for each kind of target."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax import backend
from tvm.target import Target

from relaxc.schedules.cpu import planning
from relaxc.schedules.cuda.attention.form import match
from relaxc.schedules.cuda.common.template import multiplied_on
from relaxc.schedules.cuda.gemm.compute import takes_bytes
from relaxc.schedules.hardware import Cpu, cpu_of
from relaxc.schedules.plan import Planner
from relaxc.service.errors import RelaxcError
from relaxc.service.passes.common.origins import Follower
from relaxc.service.passes.fuse.annotate_pads import AnnotatePads
from relaxc.service.passes.fuse.define_sizes_first import DefineSizesFirst
from relaxc.service.passes.fuse.fuse_kernels import FuseKernels
from relaxc.service.passes.fuse.group_kernels import GroupKernels
from relaxc.service.passes.fuse.keep_unfused import KeepUnfused
from relaxc.service.passes.fuse.record_fusions import RecordFusions
from relaxc.service.passes.fuse.sizes_as_shape import SizesAsShape
from relaxc.service.passes.layout.as_conv2d import AsConv2d
from relaxc.service.passes.layout.block_channels import BlockChannels
from relaxc.service.passes.layout.bytes_by_columns import BytesByColumns
from relaxc.service.passes.layout.channels_last import ChannelsLast
from relaxc.service.passes.layout.choose_layout import ChooseLayout
from relaxc.service.passes.layout.hoist_quantization import HoistQuantization
from relaxc.service.passes.layout.images_last import ImagesLast
from relaxc.service.passes.layout.keep_roles import KeepRoles
from relaxc.service.passes.layout.one_row_products import OneRowProducts
from relaxc.service.passes.layout.pack_block_weights import PackBlockWeights, takes
from relaxc.service.passes.layout.pack_matmul import PackMatmul
from relaxc.service.passes.layout.stream_block_weights import StreamBlockWeights
from relaxc.service.passes.layout.stream_block_weights import takes as streams
from relaxc.service.passes.legalize.legalize import Legalize
from relaxc.service.passes.legalize.lower_nonzero import LowerNonzero
from relaxc.service.passes.legalize.name_blocks import NameBlocks
from relaxc.service.passes.phase import Phase
from relaxc.service.passes.plugin import ApplyPatterns, Plugin
from relaxc.service.passes.precision.cancel_casts import CancelCasts
from relaxc.service.passes.precision.fast_math import FastMath
from relaxc.service.passes.precision.mark_tf32 import MarkTf32
from relaxc.service.passes.precision.narrow_contractions import NarrowContractions, gains_on, has_weight
from relaxc.service.passes.precision.quantize_weights import QuantizeWeights
from relaxc.service.passes.precision.read_low import ReadLow
from relaxc.service.passes.precision.store_low import StoreLow
from relaxc.service.passes.precision.store_products_low import StoreProductsLow
from relaxc.service.passes.precision.store_sums_low import StoreSumsLow
from relaxc.service.passes.precision.widen_arithmetic import WidenArithmetic, WidenProducts
from relaxc.service.passes.recognize.recognize_activations import RecognizeActivations
from relaxc.service.passes.recognize.recognize_attention import RecognizeAttention
from relaxc.service.passes.recognize.recognize_block_weights import RecognizeBlockWeights
from relaxc.service.passes.recognize.recognize_float8_products import RecognizeFloat8Products
from relaxc.service.passes.recognize.recognize_integer_convolutions import RecognizeIntegerConvolutions
from relaxc.service.passes.recognize.recognize_integer_products import RecognizeIntegerProducts
from relaxc.service.passes.recognize.recognize_low_attention import RecognizeLowAttention
from relaxc.service.passes.recognize.recognize_norms import RecognizeNorms
from relaxc.service.passes.recognize.recognize_safe_softmax import RecognizeSafeSoftmax
from relaxc.service.passes.report import OptimizeReport
from relaxc.service.passes.simplify.evaluate_constants import EvaluateConstants
from relaxc.service.passes.simplify.fold_batch_norm import FoldBatchNorm
from relaxc.service.passes.simplify.fold_constants import FoldConstants
from relaxc.service.passes.simplify.fold_pad import FoldPad
from relaxc.service.passes.simplify.fold_quantization import FoldQuantization
from relaxc.service.passes.simplify.fold_scale import FoldScale
from relaxc.service.passes.simplify.keep_bytes import KeepBytes
from relaxc.service.passes.simplify.merge_equal_calls import MergeEqualCalls
from relaxc.service.passes.simplify.merge_parallel_matmuls import MergeParallelMatmuls
from relaxc.service.passes.simplify.merge_quantized_matmuls import MergeQuantizedMatmuls
from relaxc.service.passes.simplify.pointwise_first import PointwiseFirst
from relaxc.service.passes.simplify.simplify_algebra import SimplifyAlgebra
from relaxc.service.passes.simplify.simplify_shapes import SimplifyShapes
from relaxc.service.passes.simplify.simplify_sizes import SimplifySizes
from relaxc.service.passes.simplify.sink_reshape import SinkReshape
from relaxc.service.passes.vm.lift_weights import LiftWeights
from relaxc.service.passes.vm.lift_workspaces import LiftWorkspaces
from relaxc.service.passes.vm.order_shape_stores import OrderShapeStores
from relaxc.service.passes.vm.share_storage import ShareStorage, ZeroOffsets
from relaxc.service.passes.vm.update_in_place import UpdateInPlace
from relaxc.service.request import Precision
from relaxc.service.rounding import BITS

__all__ = ["Job", "lowering_passes", "phases"]


_HOPPER = "sm_90a"


@dataclass(frozen=True)
class Job:
    """What the lists depend on, and what their passes fill."""

    opt_level: int = 2
    precision: Precision | None = None
    low_dtypes: frozenset[str] = frozenset()
    """The 16-bit dtypes that the model computes in."""
    weights_dtype: str | None = None
    """What weights are rounded to: `int8` or `int4`."""
    known_weights: frozenset[str] = frozenset()
    """The digests of those that the model's file has."""
    plugins: tuple[Plugin, ...] = ()
    report: OptimizeReport = field(default_factory=OptimizeReport)
    nodes: Follower = field(default_factory=Follower)
    """The model's nodes, through all passes."""
    weights: dict[str, Any] = field(default_factory=dict)
    planner: Planner | None = None
    """Whom the layout passes ask how to compute the heavy operators; None for the defaults of the hardware row."""
    unfused: list[Any] = field(default_factory=list)
    """The module before its groups become kernels, for who emits one of them anew."""
    states: int = 0
    """How many of the last parameters of `main` are state."""
    raised: list[RelaxcError] = field(default_factory=list)
    """What a pass raised: tvm makes a RuntimeError of an exception that goes through it."""


def phases(target: Target, job: Job) -> list[Phase]:
    """Return the phases for the target's kind without those above the job's -O; plugins' passes end theirs."""
    is_cuda = str(target.kind.name) == "cuda"
    chosen = _cuda_phases(job, str(target.attrs["arch"])) if is_cuda else _cpu_phases(job, cpu_of(target))
    return [
        Phase(phase.name, phase.min_opt_level, [*phase.passes, *_from_plugins(phase.name, job.plugins)])
        for phase in chosen
        if phase.min_opt_level <= job.opt_level
    ]


def _from_plugins(phase: str, plugins: tuple[Plugin, ...]) -> list[Any]:
    return [each for plugin in plugins for each in plugin.passes.get(phase, ())]


def _cpu_phases(job: Job, cpu: Cpu) -> list[Phase]:
    return [
        # One dataflow block of flat bindings
        Phase("prepare", 0, _prepare(job)),
        # 16-bit models: the arithmetic between contractions in fp32
        Phase("widen", 0, _widen(job)),
        # Inference only: quantized products before their weights are dequantized, constants into weights, chains into
        # single calls
        Phase("simplify", 1, _cpu_simplify(job, cpu)),
        # The user's patterns, on the simplified model
        Phase("plugins", 0, [ApplyPatterns(plugin, job.raised, job.report) for plugin in job.plugins]),
        # 16-bit operands of contractions, and values stored as their readers want them
        Phase("precision", 0, _cpu_precision(job, cpu)),
        # Layouts that the templates of this CPU want, weights packed here
        Phase("layout", 2, _layout(job, cpu)),
        # Cheaper arithmetic within the verification tolerance
        Phase("fast_math", 3, [FastMath()]),
        # Operators become TIR; where no arithmetic is in 16 bits, a cast to them is there for its rounding
        Phase(
            "legalize",
            0,
            [
                LowerNonzero(),
                *_legalize(job, by_fma=cpu.fuses, rounds=not job.low_dtypes and _narrowed(job) is None),
            ],
        ),
        # One kernel for a contraction and its epilogue, and for a chain of elementwise operators
        Phase("fuse", 1, _fuse(job)),
        # Constants become a parameter
        Phase("weights", 0, _weights(job)),
    ]


def _cuda_phases(job: Job, arch: str) -> list[Phase]:
    return [
        Phase("prepare", 0, _prepare(job)),
        # What lies between kernels as the model rounds it: memory is what bounds most of them
        Phase("widen", 0, _widen(job, stored=True)),
        Phase("simplify", 1, _cuda_simplify(job, arch)),
        Phase("plugins", 0, [ApplyPatterns(plugin, job.raised, job.report) for plugin in job.plugins]),
        Phase("precision", 0, _precision(job)),
        # Attention in one kernel; NHWC where the templates read it, or where a model came with the transposes for it
        Phase("layout", 2, _cuda_layout(job, arch)),
        Phase("fast_math", 3, [FastMath()]),
        Phase("legalize", 0, _legalize(job, by_casts=arch == _HOPPER, by_keys=True)),
        Phase("fuse", 1, [*_fuse(job), *([MarkTf32()] if job.precision is Precision.TF32 else [])]),
        Phase("weights", 0, _weights(job)),
    ]


def _prepare(job: Job) -> list[Any]:
    bits = BITS[job.weights_dtype] if job.weights_dtype else None
    return [
        relax.transform.ConvertToDataflow(),
        SimplifySizes(),
        relax.transform.CanonicalizeBindings(),
        *([QuantizeWeights(bits, job.known_weights, job.report)] if bits else []),
        relax.transform.DeadCodeElimination(),
    ]


def _simplify() -> list[Any]:
    return [
        FoldBatchNorm(),
        relax.transform.CanonicalizeBindings(),
        FoldConstants(),
        SimplifyAlgebra(),
        SimplifyShapes(),
        RecognizeNorms(),
        RecognizeActivations(),
        RecognizeSafeSoftmax(),
        SinkReshape(),
        SimplifyShapes(),
        FoldPad(),
        FoldScale(),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        MergeEqualCalls(),
        relax.transform.DeadCodeElimination(),
    ]


def _widen(job: Job, *, stored: bool = False) -> list[Any]:
    if not job.low_dtypes:
        return []
    keeps_operands = job.precision is None or job.low_dtypes <= {job.precision.dtype}
    return [
        WidenArithmetic(contractions=not keeps_operands),
        CancelCasts(stored=stored),
        SimplifyAlgebra(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]


def _narrowed(job: Job) -> Precision | None:
    return job.precision if job.precision in (Precision.FP16, Precision.BF16) else None


def _cpu_precision(job: Job, cpu: Cpu) -> list[Any]:
    """16 bits where a kernel multiplies by packed weights; products of two computed values are for attention."""
    narrow = _narrowed(job)
    return [
        *([NarrowContractions(narrow.dtype, gains_on(cpu, narrow.dtype))] if narrow else []),
        *([WidenProducts(has_weight)] if job.low_dtypes else []),
        *_stored_low(job),
    ]


def _precision(job: Job) -> list[Any]:
    narrow = _narrowed(job)
    return [
        *([NarrowContractions(narrow.dtype)] if narrow else []),
        # What was several calls that read one value may be one by now
        *([CancelCasts(stored=True)] if job.low_dtypes else []),
        *_stored_low(job),
    ]


def _stored_low(job: Job) -> list[Any]:
    if _narrowed(job) is None and not job.low_dtypes:
        return []
    return [
        SimplifyAlgebra(),
        MergeEqualCalls(),
        StoreLow(asked=_narrowed(job) is not None),
        SimplifyAlgebra(),
        SimplifyShapes(),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        MergeEqualCalls(),
        relax.transform.DeadCodeElimination(),
    ]


def _layout(job: Job, cpu: Cpu) -> list[Any]:
    return [
        ChannelsLast(cpu, job.planner),
        relax.transform.CanonicalizeBindings(),
        MergeEqualCalls(),
        PointwiseFirst(),
        BlockChannels(job.report, cpu, job.planner),
        MergeParallelMatmuls(),
        RecognizeAttention(cpu, job.planner, narrow.dtype if (narrow := _narrowed(job)) else None),
        OneRowProducts(),
        FoldConstants(),
        MergeEqualCalls(),
        PackBlockWeights(cpu, job.planner),
        PackMatmul(cpu, job.planner),
        KeepRoles(),
    ]


def _cpu_simplify(job: Job, cpu: Cpu) -> list[Any]:
    """Quantized products while their weights are still quantized; convolutions where a layout for them is chosen."""
    twice = [*_simplify(), EvaluateConstants(), *_simplify()]
    if job.opt_level < 2:
        return [RecognizeIntegerProducts(cpu), *twice]
    blocks = RecognizeBlockWeights(partial(takes, cpu))
    if not planning.convolves_bytes(cpu):
        return [RecognizeIntegerProducts(cpu), blocks, *twice]
    convolutions = RecognizeIntegerConvolutions(lambda depth, filters: True, cpu)
    return [KeepBytes(), RecognizeIntegerProducts(cpu), blocks, convolutions, *twice, FoldQuantization()]


def _cuda_simplify(job: Job, arch: str) -> list[Any]:
    """Quantized products, while their weights are still quantized, where there is a template for them."""
    in_16_bits = job.precision in (Precision.FP16, Precision.BF16) or bool(job.low_dtypes)
    blocks = [RecognizeBlockWeights(streams)] if job.opt_level >= 2 and in_16_bits else []
    twice = [*blocks, *_simplify(), EvaluateConstants(), *_simplify()]
    if arch != _HOPPER:
        return twice
    recognized = RecognizeIntegerProducts(takes=takes_bytes), RecognizeIntegerConvolutions(takes_bytes)
    floats = RecognizeFloat8Products(takes_bytes)
    return [KeepBytes(moves=False), *recognized, floats, *twice, FoldQuantization()]


def _cuda_layout(job: Job, arch: str) -> list[Any]:
    narrow, floats = _narrowed(job), multiplied_on(arch)
    return [
        StreamBlockWeights(),
        AsConv2d(floats),
        SinkReshape(),
        SimplifyShapes(),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        ImagesLast(job.report, floats),
        ChooseLayout(job.report),
        SimplifyShapes(),
        MergeParallelMatmuls(through_casts=True),
        SimplifyAlgebra(),
        HoistQuantization(),
        MergeQuantizedMatmuls(),
        RecognizeLowAttention(match),
        StoreProductsLow(asked=narrow is not None),
        SimplifyAlgebra(),
        FoldConstants(),
        relax.transform.CanonicalizeBindings(),
        MergeEqualCalls(),
        relax.transform.DeadCodeElimination(),
        *([StoreSumsLow(narrow.dtype)] if narrow else []),
        *([ReadLow()] if job.low_dtypes else []),
        *([BytesByColumns()] if arch == _HOPPER else []),
        KeepRoles(),
    ]


def _legalize(
    job: Job, *, by_fma: bool = False, by_casts: bool = False, rounds: bool = False, by_keys: bool = False
) -> list[Any]:
    return [
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        Legalize(job.raised, by_fma=by_fma, by_casts=by_casts, rounds=rounds, by_keys=by_keys),
        NameBlocks(),
        relax.transform.DeadCodeElimination(),
    ]


def _fuse(job: Job) -> list[Any]:
    return [
        relax.transform.AnnotateTIROpPattern(),
        AnnotatePads(),
        GroupKernels(),
        DefineSizesFirst(),
        RecordFusions(job.report),
        SizesAsShape(),
        KeepUnfused(job.unfused),
        FuseKernels(),
        relax.transform.DeadCodeElimination(),
    ]


def _weights(job: Job) -> list[Any]:
    return [
        # Before scheduling, which hides from it that a PrimFunc only reshapes
        relax.transform.RewriteDataflowReshape(),
        relax.transform.DeadCodeElimination(),
        LiftWeights(job.weights),
        UpdateInPlace(job.states, job.report),
    ]


def lowering_passes(target: Target) -> list[Any]:
    """From scheduled PrimFuncs and Relax to what the VM's code generator takes: TVM's order, and passes of ours."""
    is_cuda = str(target.kind.name) == "cuda"
    return [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        *([LiftWorkspaces()] if is_cuda else []),
        relax.transform.StaticPlanBlockMemory(),
        ShareStorage(offsets=is_cuda),
        *([relax.transform.RewriteCUDAGraph()] if is_cuda else []),
        ZeroOffsets(),
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        OrderShapeStores(),
        relax.transform.AttachGlobalSymbol(),
    ]

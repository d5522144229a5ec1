"""The passes from scheduled S-TIR to what the code generators take: TVM's own list, with ours marked."""

from __future__ import annotations

from functools import cache
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.pipeline import finalize_device_passes, finalize_host_passes

from relaxc.service.lowering import brain_floats
from relaxc.service.lowering.accumulate import AccumulateLocally
from relaxc.service.lowering.bool_bytes import BoolBytes
from relaxc.service.lowering.brain_floats import CallBrainFloats, KeepBrainFloats
from relaxc.service.lowering.cuda_arithmetic import CudaArithmetic
from relaxc.service.lowering.fold_bits import FoldBits
from relaxc.service.lowering.hide_quotients import HideQuotients, ShowQuotients
from relaxc.service.lowering.keep_bools import KeepBools
from relaxc.service.lowering.keep_infinite import KeepInfinite
from relaxc.service.lowering.keep_nan import KeepNan
from relaxc.service.lowering.library_tanh import LibraryTanh
from relaxc.service.lowering.prefetch import InsertPrefetches
from relaxc.service.lowering.same_integers import SameIntegers
from relaxc.service.lowering.sink_locals import SinkLocals
from relaxc.service.lowering.stack import KeepTilesOnStack
from relaxc.service.lowering.text_kernels import lower_text_kernels, split_text_kernels
from relaxc.service.lowering.truncate_quotients import TruncateQuotients
from relaxc.service.lowering.trusted_arguments import SkipTrustedChecks
from relaxc.service.lowering.vector_alignment import UnrollUnalignedVectors
from relaxc.service.lowering.vector_functions import CallVectorFunctions, MarkVectorFunctions, register_operators
from relaxc.service.lowering.vector_tails import VersionVectorLoops
from relaxc.service.lowering.wrap_integers import WrapIntegers

__all__ = ["NAME", "NOTHING", "register"]

NAME = "relaxc"
"""The name under which `tvm.tirx.build` finds the pipeline."""

NOTHING = "relaxc.nothing"
"""The name of one that leaves no function: for a build of the VM's part alone."""

_LEFT_TO_LLVM = frozenset({"tirx.RemoveNoOp", "tirx.CommonSubexprElim"})
"""LLVM does both again. Without the first the objects of all kernels of MobileNetV2, ResNet-50 and BERT are the same;
without the second MobileNetV2's are 9 % smaller. Calls of the three took 1.01, 1.00 and 1.00 of their time."""


@cache
def register() -> None:
    """Make the pipeline known to `tvm.tirx.build`; to do so again does nothing, for TVM's list of operators is long."""
    register_operators()
    brain_floats.register_operators()
    tirx.register_tir_pipeline(NAME, lambda: (_passes, _finalize_host, _finalize_device))
    tirx.register_tir_pipeline(NOTHING, lambda: (_nothing, finalize_host_passes, finalize_device_passes))


def _finalize_host() -> Any:
    return tvm.ir.transform.Sequential([finalize_host_passes(), WrapIntegers(64), FoldBits()])  # the last two are ours


def _finalize_device() -> Any:
    """TVM's passes, then ours."""
    return tvm.ir.transform.Sequential([finalize_device_passes(), FoldBits(), CudaArithmetic(), BoolBytes()])


def _nothing(module: Any) -> Any:
    return tvm.IRModule({})


def _passes(module: Any) -> Any:
    text, other = split_text_kernels(module)
    left_out = _LEFT_TO_LLVM if _is_for_cpus(module) else frozenset()
    lowered = tvm.ir.transform.Sequential([each for each in _list() if each.info.name not in left_out])(other)
    if text.functions:
        lowered.update(lower_text_kernels(text))
    return tvm.ir.transform.Sequential(_host_and_device())(lowered)


def _is_for_cpus(module: Any) -> bool:
    targets = [func.attrs.get("target") for _, func in module.functions_items() if func.attrs]
    return bool(targets) and all(target is not None and target.kind.name == "llvm" for target in targets)


def _list() -> list[Any]:
    return [
        KeepInfinite(),  # ours, before all that simplifies
        SinkLocals(),  # ours
        # Blocks and their buffers become plain loops
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerCrossThreadReduction(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.ManifestSharedMemoryLocalStage(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerAutoCopy(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.InjectPermutedLayout(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.InjectSoftwarePipeline(),
        s_tir.transform.TransformMmaBufferLayout(),
        s_tir.transform.LowerOpaqueBlock(),
        # Flat buffers, machine dtypes, vectors
        HideQuotients(),  # ours
        tirx.transform.FlattenBuffer(),
        ShowQuotients(),  # ours
        AccumulateLocally(),  # ours
        InsertPrefetches(),  # ours
        KeepBrainFloats(),  # ours
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        s_tir.transform.LoopPartition(),
        SameIntegers(),  # ours
        UnrollUnalignedVectors(),  # ours
        VersionVectorLoops(),  # ours
        LibraryTanh(),  # ours
        MarkVectorFunctions(),  # ours
        tirx.transform.VectorizeLoop(True),
        CallVectorFunctions(),  # ours
        CallBrainFloats(),  # ours
        s_tir.transform.InjectVirtualThread(),
        s_tir.transform.InjectDoubleBuffer(),
        tirx.transform.StorageRewrite(),
        KeepBools(),  # ours
        KeepTilesOnStack(),  # ours
        # Clean-up
        s_tir.transform.HoistIfThenElse(),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.CommonSubexprElim(),
        tirx.transform.FP8ComputeLegalize(),
        TruncateQuotients(),  # ours, behind all that simplifies
        KeepNan(),  # ours, there too
        WrapIntegers(32),  # ours, there too
        # Host and device
        s_tir.transform.VerifyVTCMLimit(),
        s_tir.transform.LowerVtcmAlloc(),
        tirx.transform.VerifyMemory(),
        s_tir.transform.ThreadSync("shared"),
        s_tir.transform.ThreadSync("shared.dyn"),
        s_tir.transform.ThreadSync("warp"),
        s_tir.transform.InferFragment(),
        s_tir.transform.LowerThreadAllreduce(),
        s_tir.transform.MergeSharedMemoryAllocations(),
    ]


def _host_and_device() -> list[Any]:
    return [
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        SkipTrustedChecks(),  # ours
        tirx.transform.FP8StorageLegalize(),
        tirx.transform.BF16StorageLegalize(),
    ]

"""The ordered rules for CUDA devices: ours, dlight's, plain loops; the first that takes a PrimFunc schedules it."""

from __future__ import annotations

from tvm.s_tir.dlight import gpu

from relaxc.schedules.cuda.attention.attention_sm80 import AttentionSm80
from relaxc.schedules.cuda.attention.attention_sm90 import AttentionSm90
from relaxc.schedules.cuda.attention.decoding_sm90 import DecodingSm90
from relaxc.schedules.cuda.conv.conv2d_sm80 import Conv2dSm80
from relaxc.schedules.cuda.conv.conv2d_sm90 import Conv2dSm90
from relaxc.schedules.cuda.conv.lines_sm90 import LinesSm90
from relaxc.schedules.cuda.conv.spread import Spread
from relaxc.schedules.cuda.dlight import Dlight
from relaxc.schedules.cuda.elementwise.elementwise import Elementwise
from relaxc.schedules.cuda.elementwise.transposed import Transposed
from relaxc.schedules.cuda.full_reduction import FullReduction
from relaxc.schedules.cuda.gemm.gemm_sm80 import GemmSm80
from relaxc.schedules.cuda.gemm.gemm_sm90 import GemmSm90
from relaxc.schedules.cuda.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.cuda.groups.group_norm import GroupNorm
from relaxc.schedules.cuda.loops import Loops
from relaxc.schedules.cuda.reductions.reductions import AnyReductions
from relaxc.schedules.cuda.rows.rows import RowReductions
from relaxc.schedules.cuda.triton import Triton
from relaxc.schedules.cuda.windows.windows import OverWindows
from relaxc.schedules.template import Rule

__all__ = ["RULES", "WITHOUT_TEMPLATE"]

RULES: tuple[Rule, ...] = (
    Triton(),
    DecodingSm90(),
    AttentionSm90(),
    GemmSm90(),
    MatmulBlocks(),
    LinesSm90(),
    Conv2dSm90(),
    OverWindows(),
    Spread(),
    RowReductions(),
    GroupNorm(),
    Transposed(),
    Elementwise(),
    AttentionSm80(),
    Conv2dSm80(),
    GemmSm80(),
    AnyReductions(),
    FullReduction(),
    Dlight("cuda.matmul", gpu.Matmul(), "no contraction with an m, an n and a k axis", needs_reduction=True),
    Dlight("cuda.gemv", gpu.GEMV(), "no product of a matrix with one vector", needs_reduction=True),
    Dlight("cuda.reduction", gpu.Reduction(), "no single reduction with an epilogue", needs_reduction=True),
    Dlight(
        "cuda.general_reduction", gpu.GeneralReduction(), "its stages do not share their rows", needs_reduction=True
    ),
    Dlight("cuda.transpose", gpu.Transpose(), "no transposition"),
    Dlight("cuda.fallback", gpu.Fallback(), "no loops that could be bound to threads"),
    Loops(),
)

WITHOUT_TEMPLATE = frozenset({"given", Loops.name, *(rule.name for rule in RULES if isinstance(rule, Dlight))})
"""What a report's rows have as the rule of kernels that are no template's: dlight's, plain loops, and TVM's own."""

"""The ordered rules for CPUs; the first that takes a PrimFunc schedules it, and the last always does."""

from __future__ import annotations

from schedules.cpu.attention.attention import TiledAttention
from schedules.cpu.conv.conv2d import Conv2d
from schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from schedules.cpu.conv.conv2d_tiles import Conv2dTiles
from schedules.cpu.conv.depthwise import Depthwise
from schedules.cpu.conv.depthwise_blocked import DepthwiseBlocked
from schedules.cpu.conv.winograd import Winograd
from schedules.cpu.elementwise.fallback import Fallback
from schedules.cpu.elementwise.injective import Injective
from schedules.cpu.gemm.matmul import Matmul
from schedules.cpu.gemm.matmul_blocks import MatmulBlocks
from schedules.cpu.gemm.matmul_packed import MatmulPacked
from schedules.cpu.pooling.pooling import Pooling
from schedules.cpu.pooling.pooling_image import PoolingImage
from schedules.cpu.rows.reduction import Reduction
from schedules.cpu.rows.rows import Rows
from schedules.template import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    # Sums of products in layouts that the graph passes chose
    MatmulPacked(),
    MatmulBlocks(),
    Conv2dBlocked(),
    Conv2dTiles(),
    DepthwiseBlocked(),
    Pooling(),
    PoolingImage(),
    Winograd(),
    TiledAttention(),
    # Sums of products in any layout
    Matmul(),
    Conv2d(),
    Depthwise(),
    # Stages over rows, then plain element by element
    Rows(),
    Reduction(),
    Injective(),
    # Everything
    Fallback(),
)

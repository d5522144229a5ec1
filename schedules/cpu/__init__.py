"""The ordered rules for CPUs; the first that takes a PrimFunc schedules it, and the last always does."""

from __future__ import annotations

from relaxc.schedules.cpu.attention.attention import TiledAttention
from relaxc.schedules.cpu.conv.conv2d import Conv2d
from relaxc.schedules.cpu.conv.conv2d_blocked import Conv2dBlocked
from relaxc.schedules.cpu.conv.conv2d_tiles import Conv2dTiles
from relaxc.schedules.cpu.conv.depthwise import Depthwise
from relaxc.schedules.cpu.conv.depthwise_blocked import DepthwiseBlocked
from relaxc.schedules.cpu.conv.winograd import Winograd
from relaxc.schedules.cpu.elementwise.fallback import Fallback
from relaxc.schedules.cpu.elementwise.injective import Injective
from relaxc.schedules.cpu.gemm.matmul import Matmul
from relaxc.schedules.cpu.gemm.matmul_blocks import MatmulBlocks
from relaxc.schedules.cpu.gemm.matmul_packed import MatmulPacked
from relaxc.schedules.cpu.pooling.pooling import Pooling
from relaxc.schedules.cpu.pooling.pooling_image import PoolingImage
from relaxc.schedules.cpu.rows.reduction import Reduction
from relaxc.schedules.cpu.rows.rows import Rows
from relaxc.schedules.template import Rule

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

"""Templates without tensor cores on devices before Hopper: their launches, their spaces and their machine code."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from benchmarks.gpu import groups_cases, moves_cases, rows_cases
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.conv_cases import prim_func as windows_func
from benchmarks.gpu.groups_cases import GroupsCase
from benchmarks.gpu.moves_cases import MovesCase
from benchmarks.gpu.plain_cases import PlainCase
from benchmarks.gpu.plain_cases import prim_func as plain_func
from benchmarks.gpu.rows_cases import RowsCase
from relaxc.schedules.cuda import RULES
from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL
from relaxc.schedules.template import Declined, Schedule
from relaxc.service.lowering.target import resolve, to_tvm

SPEC = resolve("cuda-sm80")
TARGET, HOPPER = to_tvm(SPEC), to_tvm(resolve("cuda-sm90"))
OLDER = tvm.target.Target({"kind": "cuda", "arch": "sm_75"}, host=TARGET.host)
EARLY = "tirx.use_programtic_dependent_launch"
MAXIMUM = ConvCase("max", (2, 14, 14, 24), 24, (3, 3), (2, 2), (1, 1, 1, 1), epilogue="none")

KERNELS: dict[str, tuple[str, Any]] = {
    "layer norm": ("cuda.rows", lambda: rows_cases.prim_func(RowsCase("layer_norm", (2, 37, 264)))),
    "softmax": (
        "cuda.rows",
        lambda: rows_cases.prim_func(RowsCase("softmax", (3, 5, 1000), "float16", before="scale")),
    ),
    "rms norm": (
        "cuda.rows",
        lambda: rows_cases.prim_func(RowsCase("rms_norm", (1, 7, 4096), "bfloat16", "bfloat16", "residual")),
    ),
    "group norm": ("cuda.group_norm", lambda: groups_cases.prim_func(GroupsCase((2, 33, 31, 64), 32))),
    "gelu": ("cuda.elementwise", lambda: moves_cases.prim_func(MovesCase("gelu", (37, 1000)))),
    "transpose": (
        "cuda.transposed",
        lambda: moves_cases.prim_func(MovesCase("transpose", (3, 100, 72), axes=(0, 2, 1), rule="cuda.transposed")),
    ),
    "pooling": ("cuda.windows", lambda: windows_func(MAXIMUM)),
    "sums of images": ("cuda.windows", lambda: windows_func(ConvCase("pixels", (2, 7, 7, 72), 72, epilogue="none"))),
    "spread": (
        "cuda.spread",
        lambda: plain_func(PlainCase("spread", (2, 3, 17, 19), "float32", "float16", axes=(3, 2))),
    ),
}


def rule(name: str) -> Any:
    return next(each for each in RULES if each.name == name)


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_taken_and_launched_when_the_kernel_before_has_ended(name):
    taken_by, func = KERNELS[name][0], KERNELS[name][1]()
    for target, is_early in ((TARGET, False), (HOPPER, True)):
        first = next(each for each in RULES if isinstance(made := each.apply(func, target), Schedule))
        assert first.name == taken_by and TEXT_KERNEL in made.func.attrs
        assert (EARLY in list(made.func.attrs["tirx.kernel_launch_params"])) is is_early
    declined = rule(taken_by).apply(func, OLDER)
    assert isinstance(declined, Declined) and declined.reason == "the device is older than sm_80"


def test_before_hopper_no_point_has_a_cluster():
    func = KERNELS["group norm"][1]()
    assert rule("cuda.group_norm").points(func, TARGET).values["cluster"] == (1,)
    assert rule("cuda.group_norm").points(func, HOPPER).values["cluster"] == tuple(range(1, 9))
    points = rule("cuda.group_norm").searched(func, TARGET)
    assert not isinstance(points, Declined) and len(points.listed) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_nvcc_takes_it_for_the_oldest_device(name, disassembled):
    sass = disassembled(rule(KERNELS[name][0]).apply(KERNELS[name][1](), TARGET).func, SPEC)
    assert "ACQBULK" not in sass and "LDG" in sass

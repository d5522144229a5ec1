"""What a GPU can do at most: from its row into a manifest, and out of it as the limit of a kernel."""

from __future__ import annotations

import pytest

from relaxc.service import lowering
from relaxc.service.lowering.target import resolve
from relaxc.service.runtime.gpu_peak import GpuPeak
from relaxc.service.runtime.roofline import limit_of


def sheet(tag: str = "cuda-sm90") -> GpuPeak:
    made = lowering.peak_of(resolve(tag))
    assert made is not None
    return GpuPeak.from_dict(made)


def test_a_manifest_s_peak_is_read_back() -> None:
    found = sheet()
    assert GpuPeak.from_dict(found.to_dict()) == found
    assert found.machine == "H100" and found.gflops == found.by_dtype["float16"]
    assert found.by_dtype["int8"] == pytest.approx(2 * found.gflops, rel=1e-3)
    assert sheet("cuda-sm80").gflops < found.gflops
    assert lowering.peak_of(resolve("x86-64-v3")) is None  # a CPU's is measured


def test_the_limit_is_of_the_dtype_of_the_operands() -> None:
    found = sheet()
    product = limit_of(found.of("float16+float32"), 2 * 4096**3, 3 * 2 * 4096**2)
    assert product.bound == "compute"
    assert product.ms == pytest.approx(2 * 4096**3 / found.gflops / 1e6)
    plain = limit_of(found.of("float32"), 1e6, 200 << 20)  # elementwise: no tensor core takes it
    assert plain.bound == "memory"
    assert plain.ms == pytest.approx((200 << 20) / found.levels[-1].read_gbps / 1e6)


@pytest.mark.parametrize("spoiled", [{"levels": []}, {"gflops": 0}, {"by_dtype": {"float16": -1}}, {"machine": None}])
def test_what_is_none_is_refused(spoiled: dict[str, object]) -> None:
    data = {**sheet().to_dict(), **spoiled}
    if spoiled == {"machine": None}:
        del data["machine"]
    with pytest.raises((KeyError, TypeError, ValueError)):
        GpuPeak.from_dict(data)

"""Drawn networks where no GPU is: the same for a seed, runnable, and what is said of their times."""

from __future__ import annotations

import torch

from benchmarks.gpu.open.child import blamed
from benchmarks.gpu.open.draw import draw, drawn_inputs
from benchmarks.gpu.open.report import report


def test_a_seed_draws_one_network_that_runs():
    kinds = set()
    for seed in (1, 6, 9, 21, 31, 47):
        with torch.device("meta"):
            net, again = draw(seed), draw(seed)
        assert str(net.module) == str(again.module) and (net.shape, net.dtype) == (again.shape, again.dtype)
        module = net.module.to(getattr(torch, net.dtype))
        assert len(module(*(x.to("meta") for x in drawn_inputs(net, 3, 0)))) == 3
        kinds.add(net.kind)
    assert len(kinds) >= 4


def test_time_is_blamed_on_rules():
    kernels = [("fused_mean_kernel", 1.0, 30.0), ("conv_kernel_1", 2.0, 60.0), ("Memcpy", 1.0, 10.0)]
    rules = [
        {"function": "fused_mean", "rule": "cuda.reduction", "shapes": "8x4"},
        {"function": "conv", "rule": "cuda.conv2d_sm90", "shapes": "8"},
    ]
    found = blamed(kernels, rules)
    assert found["shares"] == {"cuda.conv2d_sm90": 0.6, "cuda.reduction": 0.3, "given": 0.1}
    assert found["without"] == 0.4 and found["us"] == 100.0
    row = {"seed": 1, "batch": 8, "device": "H100", "right": True, "ratio": 1.2, "kind": "image", **found}
    said = report([row, {"seed": 2, "batch": 8, "failed": "it died"}])
    assert "1.200 of torch.compile's time, 1 of 1 above 1.1, 40% of the time without a template" in said
    assert "1 failed, 0 wrong" in said and "cuda.reduction fused_mean_kernel 8x4" in said

"""The device's half of the GPU benchmark on the CPU: its references are what the PrimFuncs compute."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.gpu import child_model, child_threads, conv_device, models
from benchmarks.gpu.attention_cases import AttentionCase
from benchmarks.gpu.build import described
from benchmarks.gpu.child_kernel import check_kernel
from benchmarks.gpu.conv_cases import ConvCase
from benchmarks.gpu.gemm_cases import Case
from benchmarks.gpu.manifest import Entry
from benchmarks.gpu.moves_cases import MovesCase
from benchmarks.gpu.plan import CASES
from benchmarks.gpu.rows_cases import RowsCase
from benchmarks.gpu.timing import milliseconds_in_turns
from benchmarks.gpu.weights import explain
from tests.benchmarks.on_cpu import computed, on_cpu

AROUND = (1, 1, 0, 1)
ATTENTION = AttentionCase(2, 4, 5, 7, 8)
PRODUCT = Case(2, 3, 16, 24, out="float32")
SQUARE = ConvCase("taps", (2, 6, 7, 8), 16, (3, 3), (1, 2), AROUND, (1, 1), epilogue="bias_residual_relu")
OUTSIDE = ConvCase("max", (1, 3, 4, 8), 8, padding=AROUND, epilogue="none")  # windows of padding alone
SMALL = [
    *(("attention", replace(ATTENTION, layout=layout, keys=5)) for layout in ("bhsd", "merged", "flat")),
    *(("attention", replace(ATTENTION, mask=mask, causal=2)) for mask in ("keys", "full", "low", "where")),
    ("attention", replace(ATTENTION, shared=2, causal=-3, masked="zero")),
    *(("gemm", replace(PRODUCT, epilogue=each)) for each in ("scale", "bias_gelu", "bias_residual", "low")),
    ("gemm", replace(PRODUCT, epilogue="bias_silu", n_major=False)),
    ("conv", SQUARE),
    ("conv", replace(SQUARE, kind="rows", epilogue="bias_clip")),
    ("conv", replace(SQUARE, kind="depthwise", filters=8, epilogue="none")),
    ("conv", ConvCase("pointwise", (1, 3, 3, 8), 16, epilogue="bias")),
    ("conv", ConvCase("max", (1, 6, 7, 8), 8, (3, 2), (2, 2), AROUND, epilogue="none")),
    *(("conv", replace(OUTSIDE, out=out)) for out in ("float16", "float32")),
    ("conv", ConvCase("pixels", (2, 3, 4, 8), 8, epilogue="none")),
    *(("rows", RowsCase(kind, (3, 5, 16))) for kind in ("layer_norm", "rms_norm", "softmax", "gelu")),
    *(("rows", RowsCase(kind, (3, 5, 16), "float16", "float32", "residual")) for kind in ("layer_norm", "softmax")),
    *(("rows", RowsCase(kind, (3, 5, 16), before="scale")) for kind in ("layer_norm", "rms_norm")),
    *(("rows", RowsCase(kind, (2, 3, 8), "float16")) for kind in ("transpose", "add")),
    *(("moves", MovesCase(kind, (2, 3, 8), "float32")) for kind in ("gelu", "add", "geglu", "where", "scale")),
    ("moves", MovesCase("append", (2, 3, 5, 4))),
    ("moves", MovesCase("rotary", (2, 5, 17), axes=(2, 8))),
    ("moves", MovesCase("patches", (2, 8, 3, 3), out="float32")),
    ("moves", MovesCase("take", (9, 8), "int32", "int64", (2, 3))),
    ("moves", MovesCase("floor_divide", (3, 8), "int32", "int32")),
    ("moves", MovesCase("equal", (3, 8), "int64", "bool")),
    ("moves", MovesCase("silu_transpose", (2, 3, 4, 5), "float32", axes=(0, 2, 3, 1))),
]


def entry_of(suite, case) -> Entry:
    entry = Entry("one", suite, {"kind_of_case": "odd"}, ["one.so"])
    return replace(entry, case=described(entry, case))


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "case"), SMALL)
def test_the_reference_is_what_the_prim_func_computes(suite, case, monkeypatch):
    kernel = computed(CASES[suite].prim_func(case))
    with on_cpu(monkeypatch, kernel):
        found, _ = check_kernel(Path(), entry_of(suite, case), repeats=1)
    assert found["right"], found


def test_a_wrong_kernel_is_found(monkeypatch):
    case, calls = RowsCase("softmax", (3, 5, 16)), itertools.count()

    def kernel(x, out):
        out.copy_(torch.softmax(x, -1))

    def unsteady(*tensors):
        kernel(*tensors)
        if next(calls):
            tensors[-1][0, 0, 0] += 1

    def leaves_one(*tensors):
        kernel(*tensors)
        tensors[-1][2, 4, 15] = float("nan")

    with on_cpu(monkeypatch, kernel):
        assert check_kernel(Path(), entry_of("rows", case), repeats=2)[0]["right"]
    for wrong in (unsteady, leaves_one, lambda *tensors: tensors[-1].fill_(0.0625)):
        with on_cpu(monkeypatch, wrong):
            assert not check_kernel(Path(), entry_of("rows", case), repeats=2)[0]["right"]


@pytest.mark.parametrize("out", ["float16", "float32"])
def test_a_maximum_over_nothing_hides_no_wrong_element(out, monkeypatch):
    """A window of padding alone is of nothing, -inf; with an infinity in it the norm of a result is one."""
    case = replace(OUTSIDE, out=out)

    def kernel(image, result, by=0.0):
        result.fill_(float("-inf"))
        result[:, 1:, 1:5] = image
        result[0, 2, 3, 4] += by

    def infinite(image, result):
        kernel(image, result)
        result[0, 1, 1, 1] = float("-inf")

    for wrong, call in ((False, kernel), (True, partial(kernel, by=0.5)), (True, infinite)):
        with on_cpu(monkeypatch, call):
            found, _ = check_kernel(Path(), entry_of("conv", case), repeats=1)
        assert found["right"] != wrong, found


def test_peers_of_a_convolution_add_the_residual_that_ours_adds(monkeypatch):
    case = ConvCase("pointwise", (2, 3, 4, 8), 16, epilogue="bias_residual_relu")

    def fused(x, weight, residual, alpha, bias, *rest):
        assert {each.dtype for each in (x, weight, residual, bias)} == {torch.float16} and alpha == 1.0
        return torch.relu(nn.functional.conv2d(x, weight, bias, *rest) + residual)

    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", fused)
    said = entry_of("conv", case).case
    with on_cpu(monkeypatch):
        given = conv_device.inputs(said, 0)
        want = conv_device.reference(said, given)
        found = {name: call() for name, call in conv_device.peers(said, given, None).items()}
    assert set(found) == {"cudnn, fused", "cudnn, then add"}
    for result in found.values():
        assert torch.allclose(result.permute(0, 2, 3, 1).double(), want, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_model_is_checked_and_timed(mode, tmp_path, monkeypatch):
    """All of a model's child but the artifact and CUDA: the weights that it makes are those that were explained."""
    monkeypatch.setitem(models.MODELS, "tiny", lambda layers: nn.Conv2d(3, 8, 32, stride=32))
    module, _ = models.model_of("tiny", 2)
    recipes, carried = explain({"w": module.weight.detach().permute(2, 3, 0, 1)}, module)
    np.savez_compressed(tmp_path / "tiny.npz", **carried)
    said = {"weights": [each.to_dict() for each in recipes], "fingerprint": models.fingerprint(module)}
    said["memory"] = {"planned_bytes": 1024}
    (tmp_path / "tiny.json").write_text(json.dumps(said))

    def load(library, weights, inputs):
        def call(image):
            weight = weights[0].permute(2, 3, 0, 1)
            return [nn.functional.conv2d(image, weight, module.bias, 32)]

        return call, 0.1

    monkeypatch.setattr(child_model, "load_model", load)
    monkeypatch.setattr(child_model, "milliseconds_in_turns", partial(milliseconds_in_turns, rounds=1))
    monkeypatch.setattr(child_model, "kernels_of", lambda call: [])
    monkeypatch.setattr(child_model, "_peak_bytes", lambda: lambda: 2048)
    monkeypatch.setattr(child_model, "turn", lambda entry, **found: None)
    monkeypatch.setattr(torch, "compile", lambda module, mode: module)
    for kind in (torch.Tensor, nn.Module):
        monkeypatch.setattr(kind, "cuda", lambda self: self)
    case = {"model": "tiny", "batch": 2, "mode": mode}
    with on_cpu(monkeypatch):
        row = child_model.measure_model(tmp_path, Entry("one", "model", case, ["tiny.so", "tiny.npz", "tiny.json"]))
    assert row["right"] and not row["moved"] and max(row["worst"], row["eager_worst"]) < 2e-2
    assert row["error"] < 2e-3 and row["bytes"] == {"ours": 1024, "torch": 2048}
    assert set(row["ms"]) == {"ours", mode} | ({"eager"} if mode == "reduce-overhead" else set())
    assert ("alone" in row) == (mode == "reduce-overhead") and row["ratio"] > 0
    said["fingerprint"]["weight"] *= 1.1
    (tmp_path / "tiny.json").write_text(json.dumps(said))
    with on_cpu(monkeypatch), pytest.raises(ValueError, match="draws other weights"):
        child_model.measure_model(tmp_path, Entry("one", "model", case, ["tiny.so", "tiny.npz", "tiny.json"]))


@pytest.mark.parametrize(("off", "right"), [(0.06, True), (0.5, False)])
def test_a_model_that_rounding_moves_is_judged_by_how_far(off, right):
    """Of a difference of almost equal sums an element may be off by more than fp16's tolerance, and no further."""
    torch.manual_seed(0)
    one, other = nn.Linear(64, 32, bias=False), nn.Linear(64, 32, bias=False)
    other.weight.data = one.weight.data * (1 + 0.2 * torch.rand_like(one.weight))
    module, x = nn.ModuleList([one, other]), torch.rand(8, 64)

    def run():
        return [one(x) - other(x)]

    with torch.no_grad():
        want = run()
        got = [want[0] * (1 + off)]
        found = child_model._judged(got, want, lambda: child_model._moved_runs(module, run))
        assert found.passed is right and all(row.moved for row in found.outputs)
        assert not child_model._judged(got, want).passed and torch.equal(run()[0], want[0])


@pytest.mark.parametrize("broken", [False, True])
def test_sessions_in_threads_are_compared_with_what_each_gives_alone(broken, tmp_path, monkeypatch):
    monkeypatch.setitem(models.MODELS, "tiny", lambda layers: nn.Conv2d(3, 8, 32, stride=32))
    np.savez_compressed(tmp_path / "tiny.npz")
    (tmp_path / "tiny.json").write_text('{"weights": []}')
    sessions = itertools.count()

    def load(library, weights, inputs):
        number = next(sessions)
        return lambda image: [image.sum((2, 3)) + (number if broken and number > 1 else 0)], 0.1

    monkeypatch.setattr(child_threads, "load_model", load)
    for kind in (torch.Tensor, nn.Module):
        monkeypatch.setattr(kind, "cuda", lambda self: self)
    case = {"model": "tiny", "batch": 1, "sessions": 3}
    with on_cpu(monkeypatch):
        row = child_threads.measure_threads(
            tmp_path, Entry("one", "threads", case, ["tiny.so", "tiny.npz", "tiny.json"])
        )
    assert row["right"] is not broken and row["calls"] == 75 and bool(row["wrong"]) is broken

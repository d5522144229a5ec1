"""The kernels of a folder on this machine's GPU: checked against fp32, timed against cuBLAS in CUDA graphs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["run"]

# Relative to the norm of the result: rounding of the result, and of fp32 sums in another order.
_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-5}
_L2_BYTES = 120 << 20
"""Inputs rotate over more than twice the L2 cache."""


def run(folder: Path, *, rounds: int = 15, only_check: bool = False) -> list[dict[str, Any]]:
    """A row for each case: its error, what equal runs gave, and microseconds of ours and cuBLAS's."""
    import torch

    from service.runtime.cuda import load_runtime

    load_runtime()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    rows = []
    for index, case in enumerate(json.loads((folder / "cases.json").read_text())):
        if not (folder / f"{index}.so").exists():
            continue
        row = {"case": index, **case}
        try:
            row |= _one(folder / f"{index}.so", case, rounds, only_check)
        except RuntimeError as error:
            row["failed"] = str(error).splitlines()[0][:300]
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def _one(library: Path, case: dict[str, Any], rounds: int, only_check: bool) -> dict[str, Any]:
    import torch
    import tvm_ffi

    kernel = tvm_ffi.load_module(str(library))["kernel"]
    inputs = _inputs(case)
    out = torch.full((case["batch"], case["m"], case["n"]), float("nan"), device="cuda", dtype=_dtype(case["out"]))
    kernel(*inputs, out)
    want = _reference(case, [x.float() for x in inputs])
    tolerance = _TOLERANCE[case["dtype" if case["epilogue"] == "low" else "out"]]
    error = float((out.float() - want).norm() / want.norm())
    first = out.clone()
    for _ in range(5):
        out.fill_(float("nan"))
        kernel(*inputs, out)
    same = bool(torch.equal(first, out))
    found = {"error": error, "right": error <= tolerance and same, "equal_bits": same}
    return found if only_check or not case["timed"] else found | _timed(kernel, case, rounds)


def _timed(kernel: Any, case: dict[str, Any], rounds: int) -> dict[str, Any]:
    import torch

    size = 2 * case["batch"] * (case["m"] * case["k"] + case["n"] * case["k"] + case["m"] * case["n"])
    copies = max(1, min(32, _L2_BYTES // size))
    sets = [_inputs(case) for _ in range(copies)]
    outs = [torch.empty(case["batch"], case["m"], case["n"], device="cuda", dtype=_dtype(case["out"])) for _ in sets]
    calls: dict[str, list[Callable[[], Any]]] = {
        "ours": [lambda x=x, o=o: kernel(*x, o) for x, o in zip(sets, outs, strict=True)]  # type: ignore[misc]
    }
    # The peer takes its bias in the operands' dtype, cast once.
    theirs = [[*x, x[2].to(_dtype(case["dtype"]))] if len(x) > 2 else x for x in sets]
    for name, peer in _peers(case).items():
        calls[name] = [lambda x=x, o=o, f=peer: f(x, o) for x, o in zip(theirs, outs, strict=True)]  # type: ignore[misc]
    repeat = 4 if case["batch"] * case["m"] * case["n"] * case["k"] > 1 << 34 else 100
    times = _rounds({name: _Graph(each, max(repeat, copies)) for name, each in calls.items()}, rounds)
    peer_us = min(us for name, us in times.items() if name != "ours")
    tflops = 2 * case["batch"] * case["m"] * case["n"] * case["k"] / times["ours"] / 1e6
    return {"us": times, "tflops": tflops, "ratio": peer_us / times["ours"]}


def _dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _inputs(case: dict[str, Any]) -> list[Any]:
    import torch

    batch, m, n, k, dtype = case["batch"], case["m"], case["n"], case["k"], _dtype(case["dtype"])
    b_shape = (batch, k, n) if case["n_major"] else (batch, n, k)
    made = [torch.randn(batch, m, k, device="cuda"), torch.randn(b_shape, device="cuda") / k**0.5]
    made = [x.to(dtype) for x in made]
    if case["epilogue"].startswith("bias") or case["epilogue"] == "low":
        made.append(torch.randn(n, device="cuda").to(dtype if case["epilogue"] == "low" else torch.float32))
    if case["epilogue"] in ("bias_residual", "low"):
        made.append(torch.randn(batch, m, n, device="cuda").to(dtype))
    return made


def _reference(case: dict[str, Any], inputs: list[Any]) -> Any:
    import torch
    from torch.nn import functional

    torch.backends.cuda.matmul.allow_tf32 = False
    a, b, *rest = inputs
    value = torch.matmul(a, b if case["n_major"] else b.transpose(1, 2))
    kind = case["epilogue"]
    value = value * 0.125 if kind == "scale" else torch.relu(value) if kind == "relu" else value
    if rest:
        value = value + rest[0]
    gelu = {"bias_gelu": "none", "bias_tanh_gelu": "tanh"}.get(kind)
    value = functional.gelu(value, approximate=gelu) if gelu else value
    value = functional.silu(value) if kind == "bias_silu" else value
    return value + rest[1] if len(rest) > 1 else value


def _peers(case: dict[str, Any]) -> dict[str, Any]:
    """cuBLAS with the weight in either layout; with an epilogue, cublasLt's own where torch has it."""
    import torch

    def product(x: list[Any], out: Any) -> None:
        torch.matmul(x[0], x[1] if case["n_major"] else x[1].transpose(1, 2), out=out)

    def flat(x: list[Any], out: Any) -> None:
        torch.mm(x[0][0], x[1][0] if case["n_major"] else x[1][0].t(), out=out[0])

    def other(x: list[Any], out: Any) -> None:  # the same numbers, read as the other layout
        b = x[1][0].view(case["n"], case["k"]).t() if case["n_major"] else x[1][0].view(case["k"], case["n"])
        torch.mm(x[0][0], b, out=out[0])

    def with_epilogue(x: list[Any], out: Any) -> None:
        weight = x[1][0] if case["n_major"] else x[1][0].t()
        bias = x[-1]
        if case["epilogue"] == "bias_tanh_gelu":
            torch._addmm_activation(bias, x[0][0], weight, use_gelu=True)
        elif case["epilogue"] == "bias_gelu":
            torch.nn.functional.gelu(torch.addmm(bias, x[0][0], weight))
        else:
            torch.addmm(bias, x[0][0], weight).add_(x[3][0])

    if case["epilogue"] != "none":
        return {"cublasLt": with_epilogue}
    return {"cublas": product} if case["batch"] > 1 else {"cublas": flat, "cublas_other": other}


class _Graph:
    """Calls in one CUDA graph, `count` of them, taken in turns."""

    def __init__(self, calls: list[Callable[[], Any]], count: int) -> None:
        import torch

        self.count = count
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls[:2]:
                call()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for index in range(count):
                calls[index % len(calls)]()
        self.start, self.end = torch.cuda.Event(True), torch.cuda.Event(True)

    def microseconds(self) -> float:
        """One replay, a call."""
        self.start.record()
        self.graph.replay()
        self.end.record()
        self.end.synchronize()
        return float(self.start.elapsed_time(self.end)) * 1e3 / self.count


def _rounds(graphs: dict[str, _Graph], count: int) -> dict[str, float]:
    """Medians over rounds in which each has its turn."""
    for graph in graphs.values():
        graph.microseconds()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(count):
        for name, graph in graphs.items():
            times[name].append(graph.microseconds())
    return {name: round(statistics.median(values), 3) for name, values in times.items()}

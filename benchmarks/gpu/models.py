"""Whole models in fp16 on this machine's GPU: compiled by relaxc and run, against torch eager and `torch.compile`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = ("bert", "bert_unmasked", "vit", "gpt2", "resnet50", "mobilenet_v2")


def build(name: str, batch: int, layers: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """The model in fp16 on the CPU with seeded weights, and its inputs."""
    import torch
    import transformers

    from tests import zoo

    torch.manual_seed(0)
    few = {} if layers is None else {"num_hidden_layers": layers}
    if name in ("bert", "bert_unmasked"):
        if name == "bert_unmasked":
            # Under torch.compile it makes a mask of ones, with which torch computes attention in fp32 products.
            transformers.models.bert.modeling_bert.create_bidirectional_mask = lambda *_, **__: None
        model = transformers.BertModel(transformers.BertConfig(**few), add_pooling_layer=False)
        inputs: tuple[Any, ...] = (torch.randint(5, 30000, (batch, 128)),)
    elif name == "vit":
        model = transformers.ViTModel(transformers.ViTConfig(**few), add_pooling_layer=False)
        inputs = (torch.randn(batch, 3, 224, 224).half(),)
    elif name == "gpt2":
        config = transformers.GPT2Config(use_cache=False, **({} if layers is None else {"n_layer": layers}))
        model = transformers.GPT2Model(config)
        inputs = (torch.randint(5, 30000, (batch, 512)),)
    elif name in MODELS:
        module = zoo.build(name, size="full", dtype="float16").module
        return module, (torch.randn(batch, 3, 224, 224).half(),)
    else:
        raise ValueError(f"there is no model {name}; there are {', '.join(MODELS)}")
    return _plain(model.half().eval()), inputs


def _plain(model: Any) -> Any:
    """The model with its last hidden state as the one result."""
    import torch

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x)[0]

    return Plain().eval()


def measure(name: str, batch: int, modes: list[str], layers: int | None, *, profiled: bool = False) -> dict[str, Any]:
    """A row: seconds to compile, the error against fp32 on the GPU, milliseconds of each, `profiled` of kernels too."""
    import torch

    model, inputs = build(name, batch, layers)
    with tempfile.TemporaryDirectory() as folder:
        exported, artifact = Path(folder) / "model.pt2", Path(folder) / "model.so"
        torch.export.save(torch.export.export(model, inputs), exported)
        start = time.perf_counter()
        command = [sys.executable, "-m", "service", "compile", str(exported), "-o", str(artifact)]
        # The worker is forked from a process in which torch has started CUDA where it sees a GPU, and fails then.
        blind = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        command += ["--target", "cuda-sm90"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=blind)
        seconds = time.perf_counter() - start
        print(done.stdout[-6000:], done.stderr[-3000:], flush=True)
        if done.returncode:
            return {"model": name, "batch": batch, "failed": (done.stderr or done.stdout)[-600:]}
        row = {"model": name, "batch": batch, "compile_s": round(seconds, 1)}
        return row | _run(model, inputs, artifact, modes, profiled)


def _run(model: Any, inputs: tuple[Any, ...], artifact: Path, modes: list[str], profiled: bool) -> dict[str, Any]:
    import torch
    import tvm

    from service.runtime.session import load

    session = load(artifact)
    tensors = [tvm.runtime.tensor(x.numpy(), session.device) for x in inputs]
    on_gpu = model.cuda()
    device_inputs = tuple(x.cuda() for x in inputs)
    with torch.no_grad():
        others = [_other_inputs(inputs, seed) for seed in range(4)]
        on_gpu.float()
        wants = [on_gpu(*(x.float() if x.is_floating_point() else x for x in _on_gpu(each))).cpu() for each in others]
        on_gpu.half()
        error = _error_of_replays(artifact, session, others, wants)
        want = on_gpu.float()(*(x.float() if x.is_floating_point() else x for x in device_inputs)).cpu()
        on_gpu.half()
        eager = on_gpu(*device_inputs).float().cpu()
        calls: dict[str, Callable[[], Any]] = {
            "relaxc": lambda: session._main(*tensors, *session._tail),
            "torch eager": lambda: on_gpu(*device_inputs),
        }
        for mode in modes:
            compiled = torch.compile(on_gpu, mode=mode)
            for _ in range(4):
                compiled(*device_inputs)
            calls[f"torch.compile {mode}"] = lambda compiled=compiled: compiled(*device_inputs)  # type: ignore[misc]
        times = _interleaved(calls)
    scale = float(want.norm())
    errors = {"relaxc": error, "torch eager": float((eager - want).norm()) / scale}
    kernels = {name: _kernels(call) for name, call in calls.items() if name != "torch eager"} if profiled else {}
    return {"error": errors, "ms": times, "kernels": kernels}


def _kernels(call: Callable[[], Any], calls: int = 5) -> list[tuple[str, float, float]]:
    """Each kernel's name, launches a call and microseconds a call, the longest first."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    launches: Counter[str] = Counter()
    microseconds: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            launches[event.name] += 1
            microseconds[event.name] += event.device_time
    return [(name, launches[name] / calls, round(us / calls, 1)) for name, us in microseconds.most_common()]


def _other_inputs(inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    import torch

    torch.manual_seed(seed)
    return tuple(torch.randn_like(x) if x.is_floating_point() else torch.randint_like(x, 5, 30000) for x in inputs)


def _on_gpu(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.cuda() for x in inputs)


def _error_of_replays(artifact: Path, session: Any, inputs: list[tuple[Any, ...]], wants: list[Any]) -> float:
    """The worst error relative to fp32 of two sessions in turns, each called with every input twice, in threads too.

    The first call captures a CUDA graph and the others replay it. Raises AssertionError where equal inputs differ.
    """
    from concurrent.futures import ThreadPoolExecutor

    import torch

    from service.runtime.session import load

    sessions = [session, load(artifact)]

    def call(which: int, index: int) -> Any:
        result = sessions[which](*(x.numpy() for x in inputs[index]))
        return torch.from_numpy(next(iter(result.values())).astype("float32"))

    order = [(which, index) for index in (*range(len(inputs)), *range(len(inputs))) for which in (0, 1)]
    found = [call(*each) for each in order]
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(lambda each: call(*each), order))
    firsts = {index: result for (_, index), result in reversed(list(zip(order, found, strict=True)))}
    for (_, index), result in zip([*order, *order], [*found, *again], strict=True):
        assert torch.equal(result, firsts[index]), f"input {index} gave two results"
    return max(float((firsts[i] - want).norm() / want.norm()) for i, want in enumerate(wants))


def _interleaved(calls: dict[str, Callable[[], Any]], rounds: int = 15, each: int = 20) -> dict[str, float]:
    """Median milliseconds of a call, up to `each` of them one after the other, taken in turns; fewer of slow ones."""
    import torch

    def milliseconds(call: Callable[[], Any], count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count * 1e3

    times: dict[str, list[float]] = {name: [] for name in calls}
    counts = {name: max(1, min(each, int(200 / milliseconds(call, 2)))) for name, call in calls.items()}
    for index in range(rounds + 2):
        for name, call in calls.items():
            found = milliseconds(call, counts[name])
            if index >= 2:
                times[name].append(found)
    return {name: round(statistics.median(values), 4) for name, values in times.items()}


def main() -> None:
    """Prints a JSON row a model and batch."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.models", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--mode", action="append", default=[], help="of torch.compile: reduce-overhead, max-autotune")
    parser.add_argument("--layers", type=int, help="fewer layers, to try it out")
    parser.add_argument("--kernels", action="store_true", help="also the time of each kernel")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.models:
        for batch in args.batch or [1]:
            rows.append(measure(name, batch, args.mode, args.layers, profiled=args.kernels))
            print(json.dumps(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()

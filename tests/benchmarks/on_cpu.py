"""Code written for a GPU on the CPU: torch's tensors, generators and the kernels of TVM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _OnCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


@contextlib.contextmanager
def on_cpu(monkeypatch: Any, kernel: Callable[..., None] | None = None) -> Iterator[None]:
    """Have "cuda" mean the CPU; `kernel` is what loading any library gives."""
    import tvm_ffi

    generator = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": generator("cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(tvm_ffi, "load_module", lambda path: {"kernel": kernel})
    with _OnCpu():
        yield


def computed(func: Any) -> Callable[..., None]:
    """Return the PrimFunc as it is, unscheduled, compiled for this CPU, as a function of torch's tensors."""
    import tvm

    library = tvm.compile(tvm.IRModule({"kernel": func.with_attr("global_symbol", "kernel")}), target="llvm")

    def call(*tensors: Any) -> None:
        given = [tvm.runtime.from_dlpack(each.contiguous()) for each in tensors]
        library["kernel"](*given)

    return call

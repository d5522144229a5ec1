"""Models built by code with seeded random weights, and their exports, for tests, benchmarks and the demo.

`build("bert")` gives a torch module with inputs; `export_onnx` and `export_pt2` write it to a file. Importing this
package imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tests.zoo.folder import written_once

__all__ = [
    "FAMILIES",
    "OTHERS",
    "Size",
    "ZooModel",
    "build",
    "export",
    "export_onnx",
    "export_pt2",
    "names",
    "sized",
    "write_onnx",
    "write_pt2",
]

Size = Literal["small", "full"]

# name -> module of this package, which has a function of the same name.
FAMILIES = {
    "mlp": "tiny",
    "cnn": "tiny",
    "resnet18": "resnet",
    "resnet50": "resnet",
    "mobilenet_v2": "mobilenet",
    "efficientnet": "mobilenet",
    "convnext": "vision",
    "vit": "vision",
    "swin": "vision",
    "bert": "text",
    "distilbert": "text",
    "t5_encoder": "text",
    "gpt2": "text",
    "llama": "text",
    "whisper_encoder": "audio",
    "lstm": "recurrent",
    "gru": "recurrent",
}
# Families that the service promises nothing about by name: 'others of the same kinds'.
OTHERS = {
    "roberta": "text_others",
    "electra": "text_others",
    "albert": "text_others",
    "deberta_v2": "text_others",
    "mistral": "text_others",
    "qwen2": "text_others",
    "qwen3": "text_others",
    "gemma": "text_others",
    "phi": "text_others",
    "gpt_neox": "text_others",
    "opt": "text_others",
    "bloom": "text_others",
    "bart_encoder": "text_others",
    "t5": "text_others",
    "clip_text": "text_others",
    "clip_vision": "vision_others",
    "dinov2": "vision_others",
    "regnet": "vision_others",
    "densenet": "vision_others",
    "unet": "vision_others",
    "segformer": "vision_others",
    "mobilevit": "vision_others",
    "deit": "vision_others",
    "beit": "vision_others",
    "poolformer": "vision_others",
    "hf_resnet": "vision_others",
    "hf_mobilenet_v2": "vision_others",
    "hf_efficientnet": "vision_others",
    "wav2vec2": "audio",
    "torch_transformer": "recurrent",
    "bilstm": "recurrent",
}


@dataclass(frozen=True)
class ZooModel:
    """A module in eval mode with example inputs.

    `dynamic` is what torch.export takes as `dynamic_shapes` to make batch (and sequence) symbolic; it names
    every tensor argument. None: the family has no symbolic form.
    """

    module: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: dict[str, Any] | None = None


def names(*, others: bool = False) -> list[str]:
    """The families that the service must take, or with `others` those nobody listed."""
    return list(OTHERS if others else FAMILIES)


def build(name: str, *, size: Size = "small", dtype: str = "float32", seed: int = 0) -> ZooModel:
    """The family's module and inputs; equal arguments give equal numbers. `dtype` is float32, float16 or bfloat16."""
    import torch

    function = getattr(importlib.import_module(f"tests.zoo.{(FAMILIES | OTHERS)[name]}"), name)
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        model: ZooModel = function(size)
        _randomize_constants(model.module)
    model.module.eval()
    model.module.requires_grad_(False)
    wanted = getattr(torch, dtype)
    return ZooModel(
        model.module.to(wanted),
        tuple(_cast(arg, wanted) for arg in model.args),
        {key: _cast(value, wanted) for key, value in model.kwargs.items()},
        model.dynamic,
    )


def sized(model: ZooModel, *, batch: int | None = None, tokens: int | None = None) -> ZooModel:
    """The model with inputs of this batch and this many tokens; None leaves a size as it is.

    A row of the new batch is an old one shifted by its number, so that no two are equal. ValueError where the family
    has no such dim.
    """
    for name, size in (("batch", batch), ("seq", tokens)):
        if size is not None:
            model = _sized_along(model, name, size)
    return model


def _sized_along(model: ZooModel, dim: str, size: int) -> ZooModel:
    axes = {
        argument: axis
        for argument, dims in (model.dynamic or {}).items()
        for axis, symbol in (dims or {}).items()
        if symbol.__name__ == dim
    }
    if not axes:
        raise ValueError(f"this family has no dim {dim}")
    args = tuple(
        _filled(value, axes.get(name), size) for name, value in zip(model.dynamic or {}, model.args, strict=False)
    )
    return replace(model, args=args, kwargs={k: _filled(v, axes.get(k), size) for k, v in model.kwargs.items()})


def _filled(value: Any, axis: int | None, size: int) -> Any:
    if axis is None:
        return value
    import torch

    rounds = range(-(-size // value.shape[axis]))
    return torch.cat([value.roll(shift, -1) for shift in rounds], axis).narrow(axis, 0, size).contiguous()


def export_pt2(
    name: str, path: Path, *, size: Size = "small", dtype: str = "float32", dynamic: bool = False, seed: int = 0
) -> Path:
    """Writes the family as torch.export.save does, `dynamic` with symbolic batch and sequence; returns `path`."""
    return write_pt2(build(name, size=size, dtype=dtype, seed=seed), path, dynamic=dynamic)


def export_onnx(
    name: str, path: Path, *, size: Size = "small", dtype: str = "float32", dynamic: bool = False, seed: int = 0
) -> Path:
    """Writes the family as torch.onnx.export(dynamo=True) does; returns `path`."""
    return write_onnx(build(name, size=size, dtype=dtype, seed=seed), path, dynamic=dynamic)


def write_pt2(model: ZooModel, path: Path, *, dynamic: bool = False) -> Path:
    """Writes the model as torch.export.save does; returns `path`."""
    import torch

    model = _sample(model, dynamic)
    with _quiet(), torch.no_grad():
        program = torch.export.export(model.module, model.args, model.kwargs, dynamic_shapes=_shapes(model, dynamic))
        torch.export.save(program, path)
    return path


def write_onnx(model: ZooModel, path: Path, *, dynamic: bool = False) -> Path:
    """Writes the model as torch.onnx.export(dynamo=True) does; returns `path`."""
    import torch

    model = _sample(model, dynamic)
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            model.module,
            model.args,
            path,
            kwargs=model.kwargs,
            dynamo=True,
            verbose=False,
            dynamic_shapes=_shapes(model, dynamic),
            external_data=False,
        )
    return path


def export(name: str, format: str, *, size: Size = "small", dtype: str = "float32", dynamic: bool = False) -> Path:
    """The family in a file of `format` ("onnx" or "pt2"), written once: see tests/zoo/folder.py."""
    return _export_once(name, format, size, dtype, dynamic)


@functools.cache
def _export_once(name: str, format: str, size: Size, dtype: str, dynamic: bool) -> Path:
    write = {"onnx": export_onnx, "pt2": export_pt2}[format]
    file = f"{name}-{size}-{dtype}{'-dynamic' if dynamic else ''}.{format}"
    return written_once(file, lambda path: write(name, path, size=size, dtype=dtype, dynamic=dynamic))


def _sample(model: ZooModel, dynamic: bool) -> ZooModel:
    """The model with inputs to export with: torch takes a size of 1 for one that is always 1."""
    if not dynamic or model.dynamic is None:
        return model
    shapes = model.dynamic
    twice = {name for name, dims in shapes.items() if dims and 0 in dims}

    def doubled(name: str, value: Any) -> Any:
        return value.repeat(2, *[1] * (value.ndim - 1)) if name in twice and value.shape[0] == 1 else value

    args = tuple(doubled(name, value) for name, value in zip(shapes, model.args, strict=False))
    return replace(model, args=args, kwargs={name: doubled(name, value) for name, value in model.kwargs.items()})


def _shapes(model: ZooModel, dynamic: bool) -> dict[str, Any] | None:
    if not dynamic:
        return None
    if model.dynamic is None:
        raise ValueError("this family has no symbolic form")
    return model.dynamic


def _cast(value: Any, dtype: Any) -> Any:
    import torch

    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _randomize_constants(module: Any) -> None:
    """Gives every BatchNorm statistics, and every scale of ones and shift or bias of zeros values of its own.

    A trained model has none of them: with zeros and ones they are folded away, a bug in them is not seen, and times
    and tuning records are those of kernels that nobody runs.
    """
    import torch

    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            torch.nn.init.normal_(part.running_mean, 0.0, 0.2)
            torch.nn.init.uniform_(part.running_var, 0.5, 1.5)
    for parameter in module.parameters():
        if parameter.dim() == 1 and bool((parameter == 1).all()):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        elif parameter.dim() == 1 and bool((parameter == 0).all()):
            torch.nn.init.normal_(parameter, 0.0, 0.2)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporters' progress lines and warnings away from the test report."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)

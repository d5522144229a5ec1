"""What is timed: a model of the zoo at a batch and a number of tokens, or an ONNX file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests import zoo

__all__ = ["AVX2", "STANDARD", "Case", "parse"]

_INT8, _BF16 = "int8", "bf16"

AVX2 = "x86-64-v3"
"""The target of a case whose peers are capped to AVX2."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model at one size of its inputs. `model` is a family of tests/zoo, or the path of an ONNX file.

    `batch` and `tokens` None are what the family has by itself: batch 1, and 128 tokens at full size. `quantized`: by
    ONNX Runtime's quantizer, to int8 (`benchmarks.peers.quantize`). `precision`: what ours is compiled with, the
    model's own dtypes where it is None; OpenVINO as it comes then counts, which has bfloat16 where the CPU has it.
    `target`: what ours is compiled for, this machine where it is None; peers are capped to the same instructions.
    """

    model: str
    batch: int | None = None
    tokens: int | None = None
    size: zoo.Size = "full"
    quantized: bool = False
    precision: Literal["bf16"] | None = None
    target: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether it is a file, of which no framework's module is known."""
        return self.model.endswith(".onnx")

    @property
    def label(self) -> str:
        """What a table calls it: `gpt2,tokens=64`."""
        name = Path(self.model).stem if self.is_file else self.model
        sizes = (("batch", self.batch), ("tokens", self.tokens))
        words = [f"{word}={size}" for word, size in sizes if size is not None]
        if self.quantized:
            words.append(_INT8)
        return ",".join([name, *words, *(word for word in (self.precision, self.target) if word)])

    @property
    def key(self) -> str:
        """The name of its folder of prepared files."""
        return re.sub(r"[^\w.]+", "-", self.label if self.is_file else f"{self.label},{self.size}")

    @property
    def is_batched(self) -> bool:
        """Whether the bar is the one for larger batches."""
        return (self.batch or 1) > 1


STANDARD = (
    Case("resnet18"),
    Case("resnet50"),
    Case("mobilenet_v2"),
    Case("efficientnet"),
    Case("convnext"),
    Case("vit"),
    Case("bert"),
    Case("gpt2", tokens=64),
    Case("resnet50", batch=8),
    Case("bert", batch=8),
)
"""What the project's bars are stated for."""


def parse(text: str, *, batch: int | None = None, tokens: int | None = None, size: zoo.Size = "full") -> Case:
    """`NAME[,batch=N][,tokens=N][,int8|bf16][,x86-64-v3]` or the path of an ONNX file.

    The arguments are for what it does not say.
    ValueError for a family that the zoo has not, a file that is not there, and words that mean nothing.
    """
    name, *words = text.split(",")
    case = Case(name, batch, tokens, size)
    if case.is_file:
        if words or batch or tokens:
            raise ValueError(f"{text}: the sizes of a file are its own")
        if not Path(name).exists():
            raise ValueError(f"there is no file {name}")
        return replace(case, model=str(Path(name).resolve()))
    if name not in zoo.FAMILIES | zoo.OTHERS:
        raise ValueError(f"there is no model {name!r}; there are {', '.join(zoo.FAMILIES | zoo.OTHERS)}")
    for word in words:
        if word == _INT8:
            case = replace(case, quantized=True)
            continue
        if word == _BF16:
            case = replace(case, precision=_BF16)
            continue
        if word == AVX2:
            case = replace(case, target=AVX2)
            continue
        found = re.fullmatch(r"(batch|tokens)=([1-9]\d{0,5})", word)
        if not found:
            raise ValueError(f"{text}: {word!r} is not batch=N, tokens=N, int8, bf16 or {AVX2}")
        count = int(found[2])
        case = replace(case, batch=count) if found[1] == "batch" else replace(case, tokens=count)
    return case

"""What is built at both commits: models of the zoo in several forms, each for several targets."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests import zoo

__all__ = ["FORMS", "TARGETS", "Case", "NoSuchForm", "chosen", "model_file", "sources_digest"]

TARGETS = ("x86-64-v3", "x86-64-v4", "znver4", "sapphirerapids", "aarch64", "cuda-sm90")
"""An instruction set each: AVX2, AVX-512, its bytes and bfloat16, AMX, NEON; and CUDA text."""

FORMS = ("fp32", "bf16", "int8", "fp32-symbolic", "bf16-symbolic", "pt2-fp32", "pt2-fp32-symbolic")
"""int8 is quantized by ONNX Runtime, all but `pt2` are ONNX, `symbolic` has each size that may be a symbol."""


class NoSuchForm(Exception):
    """A model cannot be had in this form."""


@dataclass(frozen=True, order=True)
class Case:
    """One compile."""

    model: str
    form: str
    target: str

    @property
    def id(self) -> str:
        """What names its results."""
        return f"{self.model}-{self.form}-{self.target}"

    @property
    def options(self) -> dict[str, Any]:
        """Compile options, as JSON."""
        return {"precision": "bf16"} if self.form.startswith("bf16") else {}


def chosen(
    models: Iterable[str], forms: Iterable[str], targets: Iterable[str], *, most: int | None = None, seed: str = ""
) -> list[Case]:
    """Return the cases of these models, forms and targets, in order; `most` of them, drawn by `seed`."""
    cases = [Case(*each) for each in product(models, forms, targets)]
    if most is not None and most < len(cases):
        cases = random.Random(f"replay {seed}").sample(cases, most)
    return sorted(cases)


def model_file(case: Case, folder: Path) -> Path:
    """Write the case's model into `folder` unless it is there, and return its path. Raise NoSuchForm.

    Both commits read the same file.
    """
    written = case.form.replace("bf16", "fp32")  # the same file, other options
    path = folder / f"{case.model}-{written}.{'pt2' if case.form.startswith('pt2') else 'onnx'}"
    refused = path.with_suffix(".refused")
    with FileLock(f"{path}.lock"):
        if not path.exists() and not refused.exists():
            try:
                _write(case.model, written, path)
            except Exception as error:  # noqa: BLE001  # whatever an exporter or a quantizer has to say
                refused.write_text(f"{type(error).__name__}: {error}")
        if refused.exists():
            raise NoSuchForm(refused.read_text().splitlines()[0])
    return path


def _write(model: str, form: str, path: Path) -> None:
    from benchmarks.peers.files import named_tensors
    from benchmarks.peers.quantize import quantize

    made = zoo.build(model)
    unfinished = path.with_name(f"unfinished-{path.name}")
    write = zoo.write_pt2 if form.startswith("pt2") else zoo.write_onnx
    write(made, unfinished, dynamic=form.endswith("symbolic"))
    if form == "int8":
        inputs = {name: value.numpy() for name, value in named_tensors(made).items()}
        quantize(unfinished, unfinished, inputs)
    unfinished.rename(path)


def sources_digest(files: Sequence[Path]) -> str:
    """Return a digest of files' bytes: what is made with them is made anew where one has changed."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]

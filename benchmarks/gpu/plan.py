"""What the next minutes on a GPU are for: every case in order of importance, and how long each may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from hashlib import sha256
from json import dumps
from typing import Any

from benchmarks.gpu import (
    attention_cases,
    attention_sm80_cases,
    conv_bytes_cases,
    conv_cases,
    conv_sm80_cases,
    gemm_bytes_cases,
    gemm_cases,
    gemm_fp8_cases,
    gemm_sm80_cases,
    gemv_weights_cases,
    groups_cases,
    moves_cases,
    rows_cases,
)
from benchmarks.gpu.manifest import Entry

__all__ = ["CASES", "TOOLS", "kernel_entries", "model_entries", "sanitizer_entries", "thread_entries"]

MODELS = (
    ("bert_unmasked", 32), ("bert_unmasked", 1), ("vit", 32), ("vit", 1), ("gpt2", 32), ("gpt2", 1),
    ("gpt2_decode", 1), ("gpt2_decode", 32), ("resnet50", 1), ("resnet50", 32), ("mobilenet_v2", 1),
    ("mobilenet_v2", 32), ("llama", 1), ("llama", 32), ("unet_block", 1), ("unet_block", 32), ("bert", 1), ("bert", 32),
)  # fmt: skip
"""Models and batches, the most important first."""

CASES: dict[str, Any] = {
    "attention": attention_cases, "conv": conv_cases, "gemm": gemm_cases, "groups": groups_cases, "rows": rows_cases,
    "moves": moves_cases, "gemm_sm80": gemm_sm80_cases, "attention_sm80": attention_sm80_cases,
    "conv_sm80": conv_sm80_cases, "gemm_bytes": gemm_bytes_cases,
    "conv_bytes": conv_bytes_cases, "gemm_fp8": gemm_fp8_cases, "gemv_weights": gemv_weights_cases,
}  # fmt: skip
"""The cases of each suite of kernels; `<suite>_device` measures them."""

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_MODES = (("reduce-overhead", 150.0), ("max-autotune", 420.0))
_RANK = {
    "reduce-overhead": 0, "threads": 100, "unconfirmed": 200, "timed": 300, "odd": 400, "max-autotune": 500,
    "sanitizer": 600,
}  # fmt: skip
_ODD = {
    "attention": 60,
    "conv": 40,
    "gemm": 60,
    "groups": 30,
    "rows": 30,
    "moves": 84,
    "gemm_sm80": 40,
    "attention_sm80": 60,
    "conv_sm80": 50,
    "gemm_bytes": 60,
    "conv_bytes": 40,
    "gemm_fp8": 50,
    "gemv_weights": 50,
}
_SANITIZED = 20
_THREADED, _SESSIONS = (("resnet50", 1), ("bert_unmasked", 1), ("gpt2_decode", 1)), 8


def model_entries(only: Iterable[str] = ()) -> Iterator[Entry]:
    """Yield each model with each mode of torch.compile; all the modes of one share its files."""
    wanted = set(only)
    for mode, limit in _MODES:
        for rank, (name, batch) in enumerate(MODELS):
            if wanted and name not in wanted:
                continue
            stem = f"{name}_b{batch}"
            files = [f"{stem}{ending}" for ending in (".so", ".npz", ".json")]
            case = {"model": name, "batch": batch, "mode": mode}
            yield Entry(f"model/{stem}/{mode}", "model", case, files, limit, _RANK[mode] + rank)


def thread_entries(models: Iterable[Entry]) -> Iterator[Entry]:
    """Yield an entry for some of the models that are there: sessions in threads of one process."""
    there = {each.id: each for each in models}
    for name, batch in _THREADED:
        model = there.get(f"model/{name}_b{batch}/reduce-overhead")
        if model is not None:
            case = {"model": name, "batch": batch, "sessions": _SESSIONS}
            yield Entry(f"threads/{name}_b{batch}", "threads", case, model.files, 60.0, _RANK["threads"])


def kernel_entries() -> Iterator[tuple[Entry, Any]]:
    """Yield each kernel's entry and its case; equal cases once."""
    seen = set()
    for suite, kind, case in _kernels():
        name = _name(suite, case)
        if name not in seen:
            seen.add(name)
            rank = _RANK[kind] + list(CASES).index(suite)
            yield Entry(name, suite, {**asdict(case), "kind_of_case": kind}, [], 30.0, rank), case


def _kernels() -> Iterator[tuple[str, str, Any]]:
    for suite, cases in CASES.items():
        for new in getattr(cases, "UNCONFIRMED", ()):
            yield suite, "unconfirmed", new
        for timed in cases.TIMED:
            yield suite, "timed", timed
        for odd in cases.awkward(_ODD[suite], 200):
            yield suite, "odd", odd


def sanitizer_entries(kernels: Iterable[Entry]) -> Iterator[Entry]:
    """Yield an entry for each tool and suite: the first odd kernels under compute-sanitizer."""
    kernels = list(kernels)
    for suite in CASES:
        odd = [entry for entry in kernels if entry.suite == suite and entry.case["kind_of_case"] == "odd"]
        new = [entry for entry in kernels if entry.suite == suite and entry.case["kind_of_case"] == "unconfirmed"]
        chosen = [*odd[:_SANITIZED], *(entry for entry in new if not entry.case["timed"])]
        for tool in TOOLS:
            case = {"tool": tool, "of": suite, "ids": [entry.id for entry in chosen]}
            yield Entry(f"sanitizer/{suite}/{tool}", "sanitizer", case, [], 200.0, _RANK["sanitizer"])


def _name(suite: str, case: Any) -> str:
    text = dumps(asdict(case), sort_keys=True)
    return f"{suite}/{sha256(text.encode()).hexdigest()[:12]}"

"""Rounded models for the device: their weights are drawn there, or carried where numbers are compared."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gpu.manifest import Entry

__all__ = ["KINDS", "drawn_entries"]

KINDS: dict[str, tuple[str, ...]] = {
    "bert_b32": ("int8", "fp16"), "bert_b1": ("int8", "fp16"),
    "small_bert_128": ("int8",), "small_bert_200": ("int8",),
    "e4m3_relu": ("e4m3",), "e4m3_columns": ("e4m3",), "e4m3_columns_fp16": ("e4m3",),
    "e4m3_scaled": ("e4m3",), "e4m3_scaled_rows": ("e4m3",),
}  # fmt: skip
"""Each model's libraries: several are timed in turns, one is compared with what a CPU computes of the same weights."""


def drawn_entries() -> Iterator[Entry]:
    """Yield an entry for each model."""
    for rank, (name, kinds) in enumerate(KINDS.items()):
        files = [f"{name}.{kind}{ending}" for kind in kinds for ending in (".so", ".npz", ".json")]
        files += [f"{name}.reference.npz"] if len(kinds) == 1 else []
        yield Entry(f"drawn/{name}", "drawn", {"model": name, "kinds": list(kinds)}, files, 60.0, 100 + rank)

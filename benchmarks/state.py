"""A step of a decoder with a static cache beside torch, which writes it in place: `python -m benchmarks.state`."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["main"]


def main() -> None:
    """Print the medians of interleaved rounds, and ours over torch's."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 6), ("width", 512), ("heads", 8), ("groups", 8), ("cached", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides = _sides(given, Path(folder))
        place = given.cached // 2
        for call in sides.values():
            for warm in range(5):
                call(warm)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(given.rounds):
            for name, call in sides.items():
                begun = time.perf_counter()
                for step in range(given.calls):
                    call(place + step)
                times[name].append((time.perf_counter() - begun) / given.calls * 1e3)
    found = {name: statistics.median(each) for name, each in times.items()}
    for name, each in found.items():
        print(f"{name:8} {each:8.3f} ms a step")
    print(f"relaxc / torch: {found['relaxc'] / found['torch']:.3f}")


def _sides(given: argparse.Namespace, folder: Path) -> dict[str, Callable[[int], Any]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.integrations.executorch import convert_and_export_with_cache

    import relaxc

    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=given.width,
        intermediate_size=4 * given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=given.heads,
        num_key_value_heads=given.groups,
        vocab_size=1024,
        max_position_embeddings=given.cached,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": given.cached}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = convert_and_export_with_cache(model)
    torch.export.save(program, folder / "decoder.pt2")
    made = relaxc.compile(folder / "decoder.pt2", output=folder / "decoder.so")
    for told in sorted(set(made.manifest.passes["state"].values())):
        print(list(made.manifest.passes["state"].values()).count(told), told)
    session, eager = relaxc.load(folder / "decoder.so", threads=given.threads), program.module()
    ids = np.array([[7]])

    def ours(place: int) -> Any:
        return session(input_ids=ids, cache_position=np.array([place]))

    def theirs(place: int) -> Any:
        with torch.no_grad():
            return eager(input_ids=torch.from_numpy(ids), cache_position=torch.tensor([place]))

    return {"torch": theirs, "relaxc": ours}


if __name__ == "__main__":
    main()

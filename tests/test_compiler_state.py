"""Programs that keep state: every kind of it in one net, step by step beside torch, and what a session offers of it."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import relaxc
from relaxc.service.errors import (
    ArtifactCorrupt,
    InputName,
    InputShape,
    InputType,
    StateOverflow,
    UnsupportedModel,
)
from relaxc.service.frontend.pt2 import frontend
from relaxc.service.runtime import Session, load

PLACES, WIDTH = 6, 16


class Streaming(nn.Module):
    """A cache that is written by rows, one that is read as it was before, an LSTM, a causal convolution, a counter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.cell, self.conv = nn.LSTMCell(WIDTH, WIDTH), nn.Conv1d(WIDTH, WIDTH, 3)
        self.register_buffer("cache", torch.zeros(1, PLACES, WIDTH))
        self.register_buffer("before", torch.zeros(PLACES, WIDTH))
        self.register_buffer("h", torch.randn(1, WIDTH))
        self.register_buffer("c", torch.zeros(1, WIDTH))
        self.register_buffer("taps", torch.zeros(1, WIDTH, 2))
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x[1, WIDTH] at position[1]."""
        self.cache.index_copy_(1, position, x[None])
        was = self.before.clone()
        self.before[position] = 2 * x
        h, c = self.cell(x, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        taps = torch.cat([self.taps, x[..., None]], -1)
        self.taps.copy_(taps[..., 1:])
        self.count.add_(1)
        weights = torch.softmax(x @ self.cache[0].T, -1)
        return weights @ self.cache[0], was.sum(0) - self.before.sum(0), h, self.conv(taps), self.count.clone()


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled, and compared by the compile over several steps."""
    folder = tmp_path_factory.mktemp("streaming")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Streaming().eval(), (torch.ones(1, WIDTH), torch.zeros(1, dtype=torch.int64)))
    torch.export.save(program, folder / "streaming.pt2")
    made = relaxc.compile(folder / "streaming.pt2", target="x86-64-v3")
    assert made.manifest.verified is True, made.manifest.verification
    return made.path


def steps(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Inputs of so many steps."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 1, WIDTH)).astype(np.float32)
    return [{"x": row, "position": np.array([place])} for place, row in enumerate(rows)]


def wanted(count: int, seed: int = 0) -> list[list[Any]]:
    """What torch gives for them."""
    model = Streaming().eval()
    with torch.no_grad():
        return [[each.numpy() for each in model(*map(torch.from_numpy, step.values()))] for step in steps(count, seed)]


def assert_near(got: dict[str, Any], want: list[Any]) -> None:
    for value, other in zip(got.values(), want, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-4)


def held(session: Session) -> dict[str, Any]:
    assert session.state is not None
    return dict(session.state)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_steps_are_torch_s(streaming: Path) -> None:
    session = load(streaming, threads=1)
    for step, want in zip(steps(PLACES), wanted(PLACES), strict=True):
        assert_near(session(step), want)
    assert session.state is not None
    session.state.reset()
    assert_near(session(steps(1, seed=1)[0]), wanted(1, seed=1)[0])


def test_a_row_is_written_in_place_unless_what_was_there_is_read_later(streaming: Path) -> None:
    session = load(streaming, threads=1)
    told = session.manifest.passes["state"]
    assert told["cache"] == "in place"
    assert told["before"].startswith("a copy")
    assert told["h"].startswith("a new buffer")
    assert session.state is not None
    before = {name: tensor.data_ptr() for name, tensor in zip(session.state, session.state.tensors, strict=True)}
    session(steps(1)[0])
    after = {name: tensor.data_ptr() for name, tensor in zip(session.state, session.state.tensors, strict=True)}
    assert before["cache"] == after["cache"]


@pytest.mark.parametrize("place", [-1, PLACES, 10**12])
def test_a_place_outside_is_an_error_and_changes_nothing(streaming: Path, place: int) -> None:
    session = load(streaming, threads=1)
    session(steps(1)[0])
    before = held(session)
    # The negative one is the last for torch's indexing, and outside for its index_copy
    with pytest.raises(StateOverflow):
        session({**steps(2)[1], "position": np.array([place])})
    assert_same(held(session), before)
    assert_near(session(steps(2)[1]), wanted(2)[1])


def test_clones_go_their_own_ways_over_the_same_weights(streaming: Path) -> None:
    session = load(streaming, threads=1)
    first = session(steps(1)[0])
    clones = [session.clone() for _ in range(8)]
    found: dict[int, dict[str, Any]] = {}

    def run(place: int) -> None:
        for step in steps(4, seed=place)[1:]:
            found[place] = clones[place](step)

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(clones))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place in range(len(clones)):
        alone = load(streaming, threads=1)
        assert_near(alone(steps(1)[0]), list(first.values()))
        want = [alone(step) for step in steps(4, seed=place)[1:]][-1]
        assert_same(found[place], want)
    assert_near(session(steps(2)[1]), wanted(2)[1])


def test_state_is_read_set_saved_and_loaded(streaming: Path, tmp_path: Path) -> None:
    session = load(streaming, threads=1)
    session(steps(1)[0])
    state, kept = session.state, held(session)
    assert state is not None
    state["cache"][...] = 5  # a copy
    assert_same(held(session), kept)
    state.save(tmp_path / "state")
    session(steps(2)[1])
    other = load(streaming, threads=1)
    assert other.state is not None
    other.state.load(tmp_path / "state")
    assert_same(held(other), kept)
    other.state["count"] = np.array(41)
    assert int(list(other(steps(2)[1]).values())[-1]) == 42
    kept = held(other)
    for value, error in ((np.zeros(3, np.float32), InputShape), (np.zeros((1, WIDTH)), InputType)):
        with pytest.raises(error):
            other.state["h"] = value
    with pytest.raises(KeyError):
        other.state["nothing"] = np.zeros(1)
    np.savez(tmp_path / "other.npz", h=np.zeros(1))
    (tmp_path / "text").write_text("no state")
    for name, error in (("other.npz", InputName), ("text", ArtifactCorrupt)):
        with pytest.raises(error):
            other.state.load(tmp_path / name)
    assert_same(held(other), kept)


def test_a_bound_call_steps_too(streaming: Path) -> None:
    session = load(streaming, threads=1)
    inputs = {name: value.copy() for name, value in steps(1)[0].items()}
    step = session.bind(inputs)
    for given, want in zip(steps(3), wanted(3), strict=True):
        for name, value in given.items():
            inputs[name][...] = value
        assert_near(step(), want)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_cache_that_an_export_lifted_as_a_constant_is_state(persistent: bool, tmp_path: Path) -> None:
    class Lifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = [torch.zeros(4)]  # as a cache of transformers' holds its layers
            self.register_buffer("cache", self.held[0], persistent=persistent)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.held[0].add_(x) * 2

    program = torch.export.export(Lifted(), (torch.ones(4),), strict=False)
    torch.export.save(program, tmp_path / "m.pt2")
    (spec,) = frontend.load(tmp_path / "m.pt2", shapes={}).signature.state
    assert spec.name == ("lifted_tensor_0" if persistent else "cache")  # the file has two tensors, or one


def test_what_trains_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    torch.export.save(torch.export.export(model, (torch.ones(3, 4),)), tmp_path / "m.pt2")
    with pytest.raises(UnsupportedModel, match="statistics") as caught:
        frontend.load(tmp_path / "m.pt2", shapes={})
    assert "model.eval()" in caught.value.remedy


FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2},
    "Qwen2": {"num_key_value_heads": 2},
    "Phi": {},
    "GPT2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 264},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_with_a_static_cache_gives_torch_s_tokens(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.integrations.executorch import convert_and_export_with_cache

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": 264} if family != "GPT2" else {}
    config = getattr(transformers, f"{family}Config")(
        **(sizes if family != "GPT2" else {}), **FAMILIES[family], vocab_size=97, pad_token_id=0
    )
    torch.manual_seed(3)
    name = f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM"
    model = getattr(transformers, name)(config).eval()
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = {"batch_size": 1, "max_cache_len": 264}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells of transformers' collectors
        program = convert_and_export_with_cache(model)
    torch.export.save(program, tmp_path / "decoder.pt2")
    made = relaxc.compile(tmp_path / "decoder.pt2", target="x86-64-v3")
    assert made.manifest.verified is True, made.manifest.verification
    assert [made.manifest.passes["state"][f"{kind}_cache_1"] for kind in ("key", "value")] == ["in place"] * 2
    session, eager = load(made.path), program.module()
    ours, theirs = [5], [5]
    for place in range(256):
        (logits,) = session(input_ids=np.array([ours[-1:]]), cache_position=np.array([place])).values()
        with torch.no_grad():
            want = eager(input_ids=torch.tensor([theirs[-1:]]), cache_position=torch.tensor([place]))
        ours.append(int(logits[0, -1].argmax()))
        theirs.append(int(want[0, -1].argmax()))
    assert ours == theirs

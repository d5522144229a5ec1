"""The backend of torch.compile: eager's numbers, one compile for equal graphs, and what is refused runs eagerly."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import relaxc
from relaxc.service import config
from relaxc.service.jobs.local import calls as local

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"


@pytest.fixture(scope="module", autouse=True)
def own_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAXC_CACHE_DIR", str(tmp_path_factory.mktemp("store")))
        config.settings.cache_clear()
        local._backend_of.cache_clear()
        yield
    config.settings.cache_clear()
    local._backend_of.cache_clear()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graph of another test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Any:
    relaxc.torch_backend  # noqa: B018  # registers the name
    return torch.compile(model, backend="relaxc", options={"target": "x86-64-v3", **options})


def counted(call: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """What a call gives, and how the report grew."""
    before = relaxc.torch_backend.report()
    found = call()
    after = relaxc.torch_backend.report()
    return found, {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()


def same(got: Any, want: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_net_compiles_once_for_all_batches_and_comes_from_the_store_again() -> None:
    model = mlp()
    for told in ({"compiled": 1}, {"store": 1}):
        torch._dynamo.reset()
        net = torch.compile(model, backend=relaxc.torch_backend.backend, dynamic=True)
        for rows, grew in ((3, told), (5, {}), (2, {})):
            x = torch.randn(rows, 16)
            with torch.no_grad():
                got, grown = counted(lambda x=x, net=net: net(x))
            same(got, model(x))
            assert grown == grew
    alone = net(x)
    with pytest.raises(RuntimeError, match="inference"):
        alone.sum().backward()


@pytest.mark.slow
def test_weights_that_change_make_another_artifact() -> None:
    model, x = mlp(), torch.randn(2, 16)
    net = compiled(model)
    with torch.no_grad():
        same(net(x), model(x))
        model[0].weight.mul_(2)
        got, grown = counted(lambda: net(x))
    same(got, model(x))
    assert grown == {"compiled": 1}


def test_weights_that_change_uncounted_make_another_artifact() -> None:
    model, x = nn.Sequential(nn.Linear(16, 600), nn.BatchNorm1d(600)).eval(), torch.randn(4, 16)
    net = compiled(model)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for change in (
            lambda: model.train()(x),  # torch does not count what a batch norm writes
            lambda: model[0].weight.data.mul_(2),
            lambda: setattr(model[0].bias, "data", torch.randn(600)),
        ):
            same(net(x), model(x))
            change()
            model.eval()
        same(net(x), model(x))


def test_what_is_refused_runs_eagerly_and_says_so() -> None:
    x = torch.randn(4, 4)
    with pytest.warns(relaxc.torch_backend.RunsEagerly, match="unsupported-model.*svd"):
        got, grown = counted(lambda: compiled(lambda x: torch.linalg.svd(x)[1])(x))
    same(got, torch.linalg.svd(x)[1])
    assert grown == {"eager": 1, "eager: unsupported-model": 1}


def test_what_changes_its_input_runs_eagerly() -> None:
    x = torch.ones(4)
    with pytest.warns(relaxc.torch_backend.RunsEagerly, match="changes 1"):
        got = compiled(lambda x: x.add_(1) * 2)(x)
    same(got, torch.full((4,), 4.0))
    same(x, torch.full((4,), 2.0))


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_share_memory_as_eager_s_do(dynamic: bool) -> None:
    def model(x: torch.Tensor) -> tuple[Any, ...]:
        y = x * 2
        rows, flat, (left, right) = x[1:], y.view(-1), (y + 1).chunk(2, -1)
        torch._dynamo.graph_break()
        rows.add_(5)
        flat[1:3].mul_(3)
        left.neg_()
        return y, x.sum(), right, left, flat

    relaxc.torch_backend  # noqa: B018
    net = torch.compile(model, backend="relaxc", options={"target": "x86-64-v3"}, dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (3, 5) if dynamic else (3,):
            x = torch.randn(rows, 4)
            other = x.clone()
            got, grown = counted(lambda x=x: net(x))
            same(got, model(other))
            same(x, other)
            assert grown.get("compiled", 0) == (rows == 3)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Exception, match="no_such"):
        compiled(mlp(), no_such=1)(torch.ones(1, 16))


def decomposed(x: torch.Tensor) -> torch.Tensor:
    """GELU by its parts, as the founding documents have it."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


class SquaredRelu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) ** 2


class GeluAdd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.linear(x)) + y


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.linear(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x, x, x, need_weights=False)[0]
        return found


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x, memory)
        return found


class Several(nn.Module):
    """A size, an argument that is passed on, and a tuple."""

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        return x, x.shape[0] * 2, (x * 2, None)


def nets() -> dict[str, tuple[Any, tuple[torch.Tensor, ...], dict[str, Any]]]:
    torch.manual_seed(1)
    image, rows = torch.randn(2, 3, 12, 12), torch.randn(3, 16)
    return {
        "decomposed": (decomposed, (rows,), {}),
        "squared relu": (SquaredRelu(), (rows,), {"plugins": (str(PLUGINS / "squared_relu.py"),)}),
        "gelu + add": (GeluAdd(), (rows, torch.randn(3, 16)), {"plugins": (str(PLUGINS / "fused_gelu_add.py"),)}),
        "autocast": (Autocast(), (rows,), {}),
        "several": (Several(), (rows,), {}),
        "convolutions": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), (image,), {}),
        "pooled": (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1)), (image,), {}),
        "attention": (Attention(), (torch.randn(2, 5, 16),), {}),
        "decoder": (Decoder(), (torch.randn(2, 5, 16), torch.randn(2, 4, 16)), {}),
        "embedding": (nn.Sequential(nn.Embedding(9, 16), nn.LayerNorm(16)), (torch.tensor([[1, 8, 0]]),), {}),
        "depthwise": (nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.SiLU()), (image,), {}),
        "bfloat16": (nn.Linear(16, 16).bfloat16(), (rows.bfloat16(),), {}),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(nets()))
def test_nets_give_eager_s_numbers(name: str) -> None:
    model, given, options = nets()[name]
    if isinstance(model, nn.Module):
        model.eval()
    with torch.no_grad():
        want = model(*given)
        got, grown = counted(lambda: compiled(model, **options)(*given))
    assert grown == {"compiled": 1}
    is_low = name in ("autocast", "bfloat16")
    for one, other in zip(*(torch.utils._pytree.tree_leaves(each) for each in (got, want)), strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert one.dtype == other.dtype
        same(one.float(), other.float(), 2e-2 if is_low else 1e-4)


@pytest.mark.slow
def test_kernels_are_tuned_where_that_is_asked_for() -> None:
    model, x = mlp(), torch.randn(2, 16)
    with torch.no_grad():
        got, grown = counted(lambda: compiled(model, tune=True, trials=2)(x))
    same(got, model(x))
    assert grown == {"compiled": 1}
    assert any((config.settings().cache_dir / "torch_records").glob("**/*.json*"))


_PROGRAM = """
import torch, relaxc
from torch import nn
relaxc.torch_backend
torch.manual_seed(5)
net = torch.compile(nn.Linear(16, 4).eval(), backend="relaxc", options={"target": "x86-64-v3"})
with torch.no_grad():
    net(torch.ones(2, 16))
print(relaxc.torch_backend.report())
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing() -> None:
    runs = [subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True) for _ in "12"]
    assert [run.stdout.strip() for run in runs] == ["{'compiled': 1}", "{'store': 1}"]

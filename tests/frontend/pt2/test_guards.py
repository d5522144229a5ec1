"""What an export took for granted of sizes: every call is held to it, and nothing of its text is run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relaxc.service.errors import InputShape, InvalidShape, ModelMalformed, UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.frontend.pt2.guards import conditions
from relaxc.service.frontend.pt2.symbols import Symbols
from relaxc.service.request import ModelFormat
from relaxc.service.runtime.dims import bind, holds
from tests.frontend.pt2.support import export

ROWS: list[dict[int, Any]] = [{0: None}]


def _range(x: Any, step: int = 1) -> Any:
    import torch

    return torch.arange(0, x.shape[0] * step, step)


def _backwards(x: Any) -> Any:
    import torch

    return torch.arange(x.shape[0] - 1, -1, -1)


def _joined(x: Any) -> Any:
    import torch

    return torch.cat([_tensor([0, 2]), _range(x)])


def _wrapped(at: Any) -> Any:
    import torch

    return torch.where(at < 0, at + 5, at)


def _positions(rows: int) -> Any:
    import torch

    return torch.ones(rows, 3)


def _twice(x: Any) -> Any:
    at = _range(x)
    return at + at


def _int8() -> Any:
    import torch

    return torch.int8


def _after_cache(x: Any, cache: Any) -> Any:
    import torch

    held = cache.shape[0]
    return x + _functional().embedding(torch.arange(held, held + x.shape[0]), _positions(7))


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], list[dict[int, Any]]]] = {
    "reshape": (lambda x: x.reshape(-1, 8), [(4, 4)], [{0: None}]),
    "rows apart": (lambda x: x.split([2, x.shape[0] - 2]), [(5, 4)], [{0: None}]),
    "pool": (lambda x: _functional().max_pool2d(x, 3), [(1, 3, 8, 8)], [{2: None}]),
    "shuffled pixels": (lambda x: _functional().pixel_shuffle(x, 2), [(1, 8, 2, 2)], [{1: None}]),
    "constant places": (lambda x: x[[0, 3]], [(5, 4)], [{0: None}]),
    "rows that are selected": (lambda x: x.index_select(0, _tensor([0, 3])), [(5, 4)], [{0: None}]),
    "rows of a table": (lambda x: _functional().embedding(_tensor([3, 1]), x), [(5, 4)], [{0: None}]),
    "positions": (lambda x: x + _positions(5)[_range(x)], [(4, 3)], ROWS),
    "positions from 2": (lambda x: x + _functional().embedding(2 + _range(x)[None], _positions(6))[0], [(4, 3)], ROWS),
    "positions in 32 bits": (lambda x: x + _positions(5).index_select(0, _range(x).int()), [(4, 3)], ROWS),
    "positions of all pairs": (lambda x: _positions(9)[_range(x)[None] - _range(x)[:, None] + 4], [(4, 3)], ROWS),
    "positions from the end": (lambda x: x + _positions(5)[_range(x) - x.shape[0]], [(4, 3)], ROWS),
    "positions backwards": (lambda x: x + _positions(5)[_backwards(x)], [(4, 3)], ROWS),
    "positions turned around": (lambda x: x + _positions(5)[_range(x).flip(0)], [(4, 3)], ROWS),
    "every second position": (lambda x: _positions(9)[_range(x, 2)], [(4, 3)], ROWS),
    "positions joined": (lambda x: _positions(5)[_joined(x)], [(4, 3)], ROWS),
    "positions below 7": (lambda x: _positions(5)[_range(x).clamp(0, 7)], [(4, 3)], ROWS),
    "positions in floats": (lambda x: _positions(9)[(_range(x).float() * 2.0).floor().long()], [(4, 3)], ROWS),
    "positions that could be negative": (lambda x: _positions(5)[_wrapped(_range(x))], [(4, 3)], ROWS),
    "positions from the last": (lambda x: x + _positions(5)[-_range(x) - 1], [(4, 3)], ROWS),
    "halves of positions": (lambda x: _positions(3)[_range(x) // 2], [(4, 3)], ROWS),
    "distances": (lambda x: _positions(5)[(_range(x) - 2).abs()], [(4, 3)], ROWS),
    "distances from below": (lambda x: _positions(9)[(-_range(x) - 3).abs()], [(4, 3)], ROWS),
    "distances of what comes later": (lambda x: _positions(9)[(_range(x) + 2).abs()], [(4, 3)], ROWS),
    "positions twice": (lambda x: _positions(9)[_twice(x)], [(4, 3)], ROWS),
    "positions and their halves": (lambda x: _positions(6)[_range(x) + _range(x) // 2 - 1], [(4, 3)], ROWS),
    "positions less their opposite": (lambda x: _positions(9)[_range(x) - (1 - _range(x))], [(4, 3)], ROWS),
    "halves in floats": (lambda x: _positions(3)[(_range(x).float() / 2).floor().long()], [(4, 3)], ROWS),
    "halves of positions, cut off": (lambda x: _positions(3)[(_range(x) / 2).long()], [(4, 3)], ROWS),
    "halves by a product": (lambda x: _positions(3)[(_range(x) * 0.5).int()], [(4, 3)], ROWS),
    "halves rounded up": (lambda x: _positions(3)[(_range(x) / 2).ceil().long()], [(4, 3)], ROWS),
    "positions below 7.5": (lambda x: _positions(5)[_range(x).float().clamp(-0.5, 7.5).long()], [(4, 3)], ROWS),
    "positions in bytes": (lambda x: _positions(5)[_range(x).clamp(0, 7).to(_int8()).long()], [(4, 3)], ROWS),
    "positions of a cache": (_after_cache, [(3, 3), (2, 3)], [{0: None}, {0: None}]),
    "places of an even size": (lambda x: x.reshape(-1, 2, 3)[[0, 3]], [(6, 4)], [{0: None}]),
    "a branch": (lambda x: x * 2 if x.shape[0] > 4 else x * 3, [(7, 4)], [{0: None}]),
    "two inputs": (lambda x, y: x.reshape(-1) + y.reshape(-1), [(6, 4), (4, 6)], [{0: None}, {1: None}]),
}


def _tensor(values: list[int]) -> Any:
    import torch

    return torch.tensor(values)


def _functional() -> Any:
    import torch

    return torch.nn.functional


def _module(function: Callable[..., Any]) -> Any:
    import torch

    class Module(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    return Module()


@pytest.mark.sampled(
    "reshape", "pool", "distances", "halves in floats", "constant places", "rows that are selected", "two inputs"
)
@pytest.mark.parametrize("name", CASES)
def test_a_call_is_refused_where_torch_refuses_it(name: str, tmp_path: Path) -> None:
    import torch

    function, shapes, axes = CASES[name]
    dynamic = tuple(dict.fromkeys(each, torch.export.Dim.DYNAMIC) for each in axes)
    path = export(tmp_path / "m.pt2", _module(function), *(torch.zeros(shape) for shape in shapes), dynamic=(dynamic,))
    signature = load(path, ModelFormat.PT2, shapes={}).signature
    program = torch.export.load(path).module()
    places = [(index, axis) for index, each in enumerate(axes) for axis in each]
    answers = set()
    for sizes in itertools.product(range(2, 9), repeat=len(places)):
        given = [list(shape) for shape in shapes]
        for (index, axis), size in zip(places, sizes, strict=True):
            given[index][axis] = size
        answers.add(ours := _takes(signature, given))
        assert ours == _runs(program, given), sizes
    assert answers == {True, False}


@pytest.mark.parametrize("name", ["index_select", "embedding", "gather"])
def test_a_constant_that_is_no_index_is_refused(name: str, tmp_path: Path) -> None:
    import torch

    at = torch.tensor([1, -1])
    functions = {
        "index_select": lambda x: x.index_select(0, at),
        "embedding": lambda x: torch.nn.functional.embedding(at, x),
        "gather": lambda x: x.gather(0, torch.tensor([[1], [-1]])),
    }
    path = export(tmp_path / "m.pt2", _module(functions[name]), torch.zeros(5, 4))
    with pytest.raises(UnsupportedModel, match="an index of -1"):
        load(path, ModelFormat.PT2, shapes={})


def _runs(program: Any, shapes: list[list[int]]) -> bool:
    import torch

    try:
        program(*map(torch.zeros, shapes))
    except (AssertionError, IndexError, RuntimeError):
        return False
    return True


def _takes(signature: Any, shapes: list[list[int]]) -> bool:
    try:
        bind(signature, [tuple(shape) for shape in shapes])
    except InputShape:
        return False
    return True


X = {"x": ("n", 4), "cache.0": (2, "2*m"), "past_0": ("m",)}


@pytest.mark.parametrize(
    ("guard", "texts"),
    [
        ("((4*L['x'].size()[0]) % 8) == 0", ["((4 * n) % 8) == 0"]),
        ("2 <= L['x'].size()[0] < 9", ["2 <= n", "n < 9"]),
        ("L['cache'][0].size()[1] != L['past'][0].size()[0]", ["(2*m) != m"]),
        ("L['x'].size()[0] > 1 and L['past'][0].size()[0] >= -3", ["n > 1", "m >= (-3)"]),
        ("Max(1, L['x'].size()[0]) == 4", ["max(1, n) == 4"]),
        ("L['x'].size()[1] == 4", []),
        ("L['x'].size()[0] == L['x'].size()[0]", []),
    ],
)
def test_a_guard_is_comparisons_of_dims(guard: str, texts: list[str]) -> None:
    found = conditions([guard], X)
    assert [each.text.replace("-3", "(-3)").replace("((-3))", "(-3)") for each in found] == texts
    assert all("L[" not in each.why for each in found)


@pytest.mark.parametrize("relation", ["==", "!=", ">=", "<=", ">", "<"])
@pytest.mark.parametrize("other", ["L['past'][0].size()[0]", "3"])
def test_one_of_two(relation: str, other: str) -> None:
    """A size of 1 that is repeated, or an equal one; what the user's shapes decide counts too."""
    guard = f"L['x'].size()[0] {relation} {other} or L['x'].size()[1] == L['x'].size()[0] or L['x'].size()[1] <= 3"
    (found,) = conditions([guard], X)
    for n, m in itertools.product(range(1, 7), repeat=2):
        want = eval(f"{n} {relation} {m if 'past' in other else 3} or {n} == 4")  # noqa: S307
        assert holds(found, {"n": n, "m": m}) == want, (n, m)
    assert not conditions(["L['x'].size()[0] == 3 or L['x'].size()[1] == 4"], X)


def test_shapes_of_the_user_that_break_a_guard_are_refused() -> None:
    with pytest.raises(InvalidShape, match=r"exported for x.size\(\)\[1\] > 4"):
        conditions(["L['x'].size()[1] > 4"], X)


@pytest.mark.parametrize(
    "guard",
    [
        "__import__('os').system('true')",
        "L['x'].size().__class__ == 1",
        "L['x'].size()[0] == True",
        "L['x'].size()[0] ** 9 == 1",
        "L['y'].size()[0] == 1",
        "L['x'].size()[7] == 1",
        "L['x'].stride()[0] == 1",
        "not L['x'].size()[0] == 1",
        "len(L['x'].size()) == 1",
        "L['x'].size()[0] == 1 // 0",
        "L['x'].size()[0] % 0 == 1",
        "L['x'].size()[0] // (2 - 2) == 1",
        "L['x'].size()[0] == " + "+".join(["L['x'].size()[0]"] * 100),
    ],
)
def test_a_guard_that_no_call_can_be_held_to_is_refused(guard: str) -> None:
    with pytest.raises(UnsupportedModel, match="which no call can be held to"):
        conditions([guard], X)


def test_a_guard_that_is_no_python_is_refused() -> None:
    for guard in ("L['x'] =", "(" * 1000, "\0"):
        with pytest.raises(ModelMalformed):
            conditions([guard], X)


@pytest.mark.parametrize(
    "guard",
    [
        "L['x'].size()[0] == " + "+".join(["L['x'].size()[0]"] * 2500),
        "L['x'].size()[0] == " + "*".join([str(1 << 61)] * 300),
        "L['x'].size()[0] == 4611686018427387903 + 1",
    ],
    ids=["2500 terms", "300 factors", "beyond 62 bits"],
)
def test_a_guard_too_deep_or_too_large_is_refused(guard: str) -> None:
    with pytest.raises(ModelMalformed, match="a guard of the program"):
        conditions([guard], X)


def test_sizes_that_never_are_what_torch_has_are_no_condition() -> None:
    """Of a range that goes down TVM says (0 - n - 2) // -1, two more than it is long."""
    import sympy
    from tvm import tirx

    symbol = sympy.Symbol("s7", integer=True)
    symbols = Symbols({"s7": (2, None)})
    symbols.meet(symbol)
    n = symbols.tir(symbol)
    more = tirx.floordiv(0 - n - 2, tirx.IntImm("int64", -1))
    assert symbols.told(more) == "s0 + 2"
    assert symbols.require(more, n, "it is as long")
    assert not symbols.require(n, more, "it is as long")
    assert not symbols.conditions

"""Triton's process: machine code for two devices, what it specializes by, and what it says when it cannot."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relaxc.schedules.cuda.triton_call import Argument, Launch, TritonCall
from relaxc.service.errors import CompileFailed, PluginError, ToolMissing
from relaxc.service.lowering import triton_compile
from relaxc.service.lowering.triton_compile import Binary, Job, compile_kernels
from tests.triton_kernels import KERNELS, call, disassembled, needs_triton

DTYPES = ("float16", "float32")


def job(made: TritonCall | None = None, dtypes: tuple[str, ...] = DTYPES) -> Job:
    made = made or call()
    return Job(made, made.launches[0], dtypes)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Binary]]:
    """The kernel in two dtypes, for two devices."""
    jobs = [job(), job(dtypes=("bfloat16", "float32"))]
    return {arch: compile_kernels(jobs, arch, tmp_path_factory.mktemp(arch) / "triton") for arch in ("sm_90a", "sm_80")}


@needs_triton
def test_machine_code_for_each_device(compiled: dict[str, list[Binary]]) -> None:
    """For Hopper alone a cubin; for sm_80 a fat binary, whose PTX later devices compile."""
    hopper, ampere = compiled["sm_90a"], compiled["sm_80"]
    assert all(each.image.startswith(b"\x7fELF") and each.symbol.encode() in each.image for each in hopper)
    assert all(each.image.startswith(b"\x50\xed\x55\xba") for each in ampere)
    assert [each.symbol for each in hopper] == [each.symbol for each in ampere]
    assert len({each.symbol for each in hopper}) == 2


@needs_triton
def test_what_is_passed_when_it_is_launched(compiled: dict[str, list[Binary]]) -> None:
    """The number 1 is a constant, as Triton's own launcher has it; two null pointers are Triton's scratch."""
    found = compiled["sm_90a"][0]
    assert (found.passed, found.given, found.added) == (("*fp16", "*fp32", "i32", "fp32"), (0, 1, 2, 4), 2)
    assert (found.threads, found.shared_bytes) == (128, 0)


@needs_triton
def test_cuobjdump_shows_the_kernel(compiled: dict[str, list[Binary]], tmp_path: Path) -> None:
    assert f"Function : {compiled['sm_90a'][0].symbol}" in disassembled(compiled["sm_90a"][0].image, tmp_path)


@needs_triton
def test_equal_code_wherever_it_is_made(compiled: dict[str, list[Binary]], tmp_path: Path) -> None:
    again = compile_kernels([job()], "sm_90a", tmp_path / "another folder" / "x")
    assert again == compiled["sm_90a"][:1]
    assert str(tmp_path).encode() not in again[0].image


def test_a_symbol_is_of_what_the_code_depends_on() -> None:
    def symbol(*values: Argument, **fields: Any) -> str:
        arguments = (Argument(tensor=0), Argument(tensor=1), *values)
        return job(replace(call(), **fields, arguments=arguments) if values else replace(call(), **fields)).symbol

    plain = symbol(Argument(value=1000), Argument(value=7), Argument(value=0.5))
    assert plain == symbol(Argument(value=1001), Argument(value=9), Argument(value=0.25))  # passed when it is launched
    for other in (992, 1, 2**40):  # divisible by 16, a constant, of 64 bits
        assert plain != symbol(Argument(value=other), Argument(value=7), Argument(value=0.5))
    assert (
        symbol() != symbol(triton="9.9") != symbol(source=KERNELS + "#")
        and symbol() != job(dtypes=("float32",) * 2).symbol
    )


PARAMETERS = "x_ptr, y_ptr, count, one, scale, WIDTH: tl.constexpr"
ANNOTATED = (
    "x_ptr: tl.const, y_ptr, count: tl.int64, one: tl.uint32, scale, WIDTH: tl.constexpr, MORE: tl.constexpr = 3"
)


@needs_triton
def test_annotations_and_defaults_of_the_kernel_hold(tmp_path: Path) -> None:
    [found] = compile_kernels([job(call(KERNELS.replace(PARAMETERS, ANNOTATED)))], "sm_90a", tmp_path / "triton")
    assert found.passed == ("*kfp16", "*fp32", "i64", "u32", "fp32")


LARGE = """
import triton
import triton.language as tl


@triton.jit
def scaled(x_ptr, y_ptr, count, one, scale, WIDTH: tl.constexpr):
    at, total = tl.arange(0, 128), tl.zeros((128, 128), dtype=tl.float32)
    places = at[:, None] * 128 + at[None, :]
    for start in range(0, count, 128):
        x = tl.load(x_ptr + start * 128 + places)
        total = tl.dot(x, x, total)
    tl.store(y_ptr + places, total)
"""

HELPED = KERNELS.replace("@triton.jit", "@triton.jit\ndef half(x):\n    return x * nothing\n\n\n@triton.jit").replace(
    "x * scale", "half(x)"
)

REFUSED = {
    "a name that is nowhere": (KERNELS.replace("x * scale", "x * scael"), r"kernels\.py:10: NameError.*scael is not"),
    "in a function that it calls": (HELPED, r"kernels\.py:8: NameError.*nothing is not"),
    "a shape": (KERNELS.replace("0, WIDTH)", "0, WIDTH - 1)"), r"kernels\.py:8: .*power of 2"),
    "python": (KERNELS.replace("def scaled(", "def scaled(:"), r"kernels\.py:7: SyntaxError"),
    "an import": ("import no_such_module_here\n" + KERNELS, r"kernels\.py:1: ModuleNotFoundError"),
    "not there": (KERNELS.replace("def scaled", "def other"), r"scaled is no @triton\.jit function"),
    "constexprs": (KERNELS.replace("WIDTH", "BLOCK"), r"scaled has no parameter WIDTH; it has x_ptr, .*BLOCK"),
    "another constexpr": (KERNELS.replace("WIDTH:", "MORE: tl.constexpr, WIDTH:"), "needs the constexprs MORE"),
    "arguments": (KERNELS.replace("one, scale,", "scale,"), r"takes 4 arguments \(x_ptr, .*\), given 5"),
    "an annotation": (
        KERNELS.replace("one, scale,", "one: tl.int8, scale,"),
        "one is annotated i8; a number is passed as i32",
    ),
    "a number that its type does not hold": (
        KERNELS.replace("one, scale,", "one, scale: tl.int32,"),
        "scale is passed as i32, which does not hold 0.5",
    ),
    "its own process": ("import os\nos._exit(3)\n", r"Triton's process.* ended with status 3"),
}


@needs_triton
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_compile_names_the_kernel_and_the_line(name: str, tmp_path: Path) -> None:
    source, said = REFUSED[name]
    with pytest.raises((PluginError, CompileFailed), match=said) as caught:
        compile_kernels([job(call(source))], "sm_90a", tmp_path / "triton")
    assert "mine.scaled" in caught.value.message and len(caught.value.message) < 300


@needs_triton
def test_too_much_shared_memory(tmp_path: Path) -> None:
    made = call(LARGE, launches=(Launch((1, 1, 1), {"WIDTH": 1}, {"num_warps": 8, "num_stages": 9}),))
    said = r"mine\.scaled needs \d+ bytes of shared memory .* sm_80 has 166912"
    with pytest.raises(PluginError, match=said) as caught:
        compile_kernels([job(made, ("float16", "float32"))], "sm_80", tmp_path / "triton")
    assert "num_stages" in caught.value.remedy


def test_without_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(triton_compile.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolMissing, match=r"Triton is not installed, which compiles mine\.scaled") as caught:
        compile_kernels([job()], "sm_90a", tmp_path / "triton")
    assert "pip install 'relaxc[triton]'" in caught.value.remedy


@needs_triton
def test_another_triton_than_the_calls(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match=r"mine\.scaled is for Triton 9\.9, and \d.* is installed"):
        compile_kernels([job(replace(call(), triton="9.9"))], "sm_90a", tmp_path / "triton")


@needs_triton
def test_it_writes_into_its_folder_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its caches too, wherever the home is; and what a kernel's file sees of the environment has no secret."""
    home = tmp_path / "home"
    home.mkdir()
    for name, value in {"HOME": home, "RELAXC_API_KEY": "secret", "TRITON_CACHE_DIR": home / "cache"}.items():
        monkeypatch.setenv(name, str(value))
    said = KERNELS + "\nimport os\nopen('seen', 'w').write(' '.join(os.environ))\n"
    compile_kernels([job(call(said))], "sm_90a", tmp_path / "triton")
    assert list(home.iterdir()) == [] and (tmp_path / "triton" / "cache0").is_dir()
    assert not re.search("RELAXC|PYTHON", (tmp_path / "triton" / "seen").read_text())

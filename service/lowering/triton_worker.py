"""Triton's own process: kernels in, machine code out. It is run as a file, `python -I triton_worker.py FOLDER SITE`.

FOLDER has `jobs.json`, a list of {`file`, `function`, `symbol`, `arch`, `arguments`, `constexprs`, `options`}; an
argument is {`type`, as Triton spells it, `value`, None of a tensor}. It gets N.cubin and N.ptx of each job, and
`results.json`, a list of {`shared` and `scratch` bytes, `threads`, bits of the `parameters`, types `passed`, the
numbers of the arguments `given`} or {`error`, `line`}. SITE is where Triton is, if it is found nowhere else.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["main"]

_NUMBERS = ("i32", "i64", "u32", "u64", "fp32")
_DIVISIBLE = [["tt.divisibility", 16]]


def main(folder: Path) -> None:
    """Answer each job of the folder."""
    results = []
    for number, job in enumerate(json.loads((folder / "jobs.json").read_text())):
        try:
            results.append(_answer(job, folder, number))
        except Exception as error:  # noqa: BLE001  # whatever a user's kernel makes Triton raise is the user's to see
            results.append(_failure(error, folder / job["file"]))
    (folder / "results.json").write_text(json.dumps(results))


def _answer(job: dict[str, Any], folder: Path, number: int) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(_module(folder / job["file"]), job["function"], None)
    if not isinstance(kernel, triton.runtime.JITFunction):
        raise TypeError(
            f"{job['function']} is no @triton.jit function (configurations are the plugin's, not autotune's)"
        )
    signature, constants, attributes = _specialized(kernel, job)
    kernel._repr = lambda _: job["symbol"]
    os.environ["TRITON_CACHE_DIR"] = str(folder / f"cache{number}")  # whose keys do not have the symbol
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", job["arch"], 32), options=job["options"])
    if made.metadata.name != job["symbol"]:
        raise RuntimeError(f"Triton called the kernel {made.metadata.name}, not {job['symbol']}")
    (folder / f"{number}.cubin").write_bytes(made.asm["cubin"])
    (folder / f"{number}.ptx").write_text(made.asm["ptx"])
    scratch = made.metadata.global_scratch_size + made.metadata.profile_scratch_size
    return {
        "shared": made.metadata.shared,
        "threads": _threads(made.asm["ptx"]),
        "scratch": scratch,
        "parameters": _parameters(made.asm["ptx"], job["symbol"]),
        "passed": [signature[name] for name in signature if signature[name] != "constexpr"],
        "given": [at for at, name in enumerate(_given(kernel, job)) if signature[name] != "constexpr"],
    }


def _module(path: Path) -> ModuleType:
    """The kernels' file, executed; Triton reads its source again, from there."""
    if path.stem in sys.modules and sys.modules[path.stem].__file__ == str(path):
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _constants(kernel: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The constexprs, those with a default too."""
    known = {each.name: each.default for each in kernel.params if each.is_constexpr and each.has_default}
    return {**known, **job["constexprs"]}


def _given(kernel: Any, job: dict[str, Any]) -> list[str]:
    """The parameters that get the arguments, in order."""
    constants = _constants(kernel, job)
    return [each.name for each in kernel.params if each.name not in constants]


def _specialized(kernel: Any, job: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """What Triton's own launcher would decide of these arguments: signature, constants, and divisibility by 16.

    Every tensor of an artifact begins at a multiple of 64 bytes (`service/runtime/tensors.py`), so pointers are
    divisible. Numbers are what they are: one that is 1 is a constant. The kernel's `do_not_specialize` and
    `do_not_specialize_on_alignment` hold.
    """
    by_name = {each.name: each for each in kernel.params}
    given, constants = _given(kernel, job), _constants(kernel, job)
    if unknown := sorted(set(constants) - set(by_name)):
        raise TypeError(f"{kernel.__name__} has no parameter {', '.join(unknown)}; it has {', '.join(by_name)}")
    if missing := [name for name in given if by_name[name].is_constexpr]:
        raise TypeError(f"{kernel.__name__} needs the constexprs {', '.join(missing)}, which are not given")
    if len(given) != len(job["arguments"]):
        raise TypeError(
            f"{kernel.__name__} takes {len(given)} arguments ({', '.join(given)}), given {len(job['arguments'])}"
        )
    types: dict[str, str] = dict.fromkeys(constants, "constexpr")
    attributes = {}
    for name, argument in zip(given, job["arguments"], strict=True):
        parameter, value, types[name] = by_name[name], argument["value"], _type(by_name[name], argument)
        if parameter.do_not_specialize or isinstance(value, float):
            continue
        if value == 1 and not parameter.annotation_type:
            types[name], constants[name] = "constexpr", 1
        elif (value is None or value % 16 == 0) and not parameter.do_not_specialize_on_alignment:
            attributes[(parameter.num,)] = _DIVISIBLE
    return {each.name: types[each.name] for each in kernel.params}, constants, attributes


def _type(parameter: Any, argument: dict[str, Any]) -> str:
    """What the argument is passed as: a number as the parameter's annotation says, a tensor as what it is."""
    given, value = argument["type"], argument["value"]
    wanted = str(parameter.annotation_type or given)
    if given.startswith("*"):
        if wanted.removeprefix("*k").removeprefix("*") != given[1:]:
            raise TypeError(f"{parameter.name} is annotated {wanted}, and gets {given}")
        return f"*k{given[1:]}" if parameter.is_const else str(given)
    if wanted not in _NUMBERS:
        raise TypeError(f"{parameter.name} is annotated {wanted}; a number is passed as {', '.join(_NUMBERS)}")
    if wanted != "fp32" and (isinstance(value, float) or value not in _range(wanted)):
        raise TypeError(f"{parameter.name} is passed as {wanted}, which does not hold {value}")
    return wanted


def _range(kind: str) -> range:
    """The numbers that an integer type holds."""
    bits = int(kind[1:])
    return range(1 << bits) if kind.startswith("u") else range(-(1 << (bits - 1)), 1 << (bits - 1))


def _parameters(ptx: str, symbol: str) -> list[int]:
    """The bits of the kernel's parameters in PTX, those that Triton adds last."""
    found = re.search(rf"\.entry {symbol}\((.*?)\)", ptx, re.DOTALL)
    return [int(bits) for bits in re.findall(r"\.param \.[a-z](\d+)", found[1])] if found else []


def _threads(ptx: str) -> int:
    found = re.search(r"\.reqntid (\d+)", ptx)
    return int(found[1]) if found else 0


def _failure(error: BaseException, file: Path) -> dict[str, Any]:
    """What the error says, and the line of the kernels' file that it is about."""
    while isinstance(error.__cause__, Exception) and type(error.__cause__).__name__ == type(error).__name__:
        error = error.__cause__  # inside of a function that the kernel calls
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return {"error": f"SyntaxError: {error.msg}", "line": error.lineno}
    line, node, text = None, getattr(error, "node", None), getattr(error, "src", None)
    if node is not None and text and hasattr(node, "lineno"):
        before = file.read_text().find(text.strip().splitlines()[0])
        line = file.read_text()[:before].count("\n") + node.lineno if before >= 0 else None
    trace = error.__traceback__
    while line is None and trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(file) else None
        trace = trace.tb_next
    return {"error": f"{type(error).__name__}: {error}", "line": line}


if __name__ == "__main__":
    sys.path.extend(sys.argv[2:])
    main(Path(sys.argv[1]))

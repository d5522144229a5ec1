"""One process that compiles what it is told to on stdin, several kernels in one library, as the product does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.gpu.build import described
from benchmarks.gpu.child import say
from benchmarks.gpu.fuzz.draw import SUITES, Drawn, draw
from benchmarks.gpu.manifest import Entry

__all__ = ["Kernel", "build_batch", "kernel_of", "scheduled", "work_of"]

_BREAKS = (RuntimeError, ValueError, TypeError, LookupError, AssertionError, AttributeError, OSError)
_MOST_WORK_ON_CPU = 5e7
_TRIES = 4
"""Points of a space to draw before the default is taken: some do not fit on an SM."""

Kernel = tuple[Entry, Any]
"""What is said of a kernel, and its PrimFunc, ready to be built."""


def main() -> int:
    """Build each batch of stdin: `seed`, `indices`, and `name`, that of the library."""
    folder, device = Path(sys.argv[1]), sys.argv[2]
    for line in sys.stdin:
        batch = json.loads(line)
        kernels: list[Kernel] = []
        for index in batch["indices"]:
            drawn = draw(batch["seed"], index)
            if device == "cpu" and (reason := _unfit(drawn)):
                say(id=drawn.id, family=drawn.family, skipped=reason)
                continue
            try:
                kernels.append(kernel_of(drawn, device))
            except _BREAKS as error:
                say(id=drawn.id, family=drawn.family, failed=_said(error))
        for entry, failed in build_batch(kernels, folder, batch["name"], device):
            found = {"failed": failed} if failed else {"entry": asdict(entry)}
            say(id=entry.id, family=entry.made["family"], **found)
        say(done=True)
    return 0


def _said(error: BaseException) -> str:
    """The error's kind and the end of what it says: what a compiler wrote is there."""
    return f"{type(error).__name__}: {error}"[-400:]


def _unfit(drawn: Drawn) -> str:
    """Why a PrimFunc without a schedule shows nothing on a CPU, or nothing."""
    return "it is too much for plain loops" if work_of(drawn) > _MOST_WORK_ON_CPU else ""


def work_of(drawn: Drawn) -> float:
    """Return its operations, and bytes read and written, together."""
    case = described(Entry(drawn.id, drawn.suite, {"kind_of_case": "random"}), drawn.case)
    return float(sum(import_module(f"benchmarks.gpu.{drawn.suite}_device").work(case)))


def kernel_of(drawn: Drawn, device: str) -> Kernel:
    """Return what is drawn as a kernel to build: scheduled for the GPU, or as it is for the CPU. Raise ValueError."""
    from relaxc.schedules.cuda.common.kernel import TEXT_KERNEL

    func = SUITES[drawn.suite].prim_func(drawn.case)
    made: dict[str, Any] = {"family": drawn.family, "rule": "none", "template": False, "parameters": {}}
    made["sizes"] = _sizes_given(func, drawn)
    if device == "cuda":
        rule, result = scheduled(drawn, func)
        ours = result.func.attrs is not None and TEXT_KERNEL in result.func.attrs
        made |= {"rule": rule, "template": ours, "parameters": dict(result.parameters), "target": drawn.target}
        func = result.func
    entry = Entry(drawn.id, drawn.suite, {"kind_of_case": "random"}, made=made)
    return Entry(drawn.id, drawn.suite, described(entry, drawn.case), made=made), func


def _sizes_given(func: Any, drawn: Drawn) -> list[int]:
    """The sizes that the kernel takes as parameters of their own, behind the operands: of an image, by its axis."""
    from tvm import tirx

    names = [str(param.name) for param in func.params if not tirx.is_buffer_var(param)]
    return [drawn.case.image[int(name.removeprefix("n"))] for name in names]


def scheduled(drawn: Drawn, func: Any) -> tuple[str, Any]:
    """Return the name of the first rule that takes `func`, and its schedule: at a random point where one is drawn.

    A case that names its rule asks it before the others.
    """
    from relaxc.schedules.cuda import RULES
    from relaxc.schedules.template import Declined
    from relaxc.service.lowering.apply import apply_rule
    from relaxc.service.lowering.target import resolve, to_tvm

    target, chance, declined = to_tvm(resolve(drawn.target)), drawn.chooser(), []
    meant = getattr(drawn.case, "rule", "")
    for rule in sorted(RULES, key=lambda rule: rule.name != meant):
        found = rule.points(func, target) if drawn.pointed and rule.since else Declined("no point is drawn")
        space = {} if isinstance(found, Declined) else found.values
        for _ in range(_TRIES if space else 0):
            made = apply_rule(rule, func, target, {name: chance.choice(list(of)) for name, of in space.items()})
            if not isinstance(made, str):
                return rule.name, made
        proposed = rule.proposed(func, target) if meant == rule.name and rule.since else None
        made = apply_rule(rule, func, target, None if isinstance(proposed, Declined) else proposed)
        if not isinstance(made, str):
            return rule.name, made
        declined.append(f"{rule.name}: {made}")
    raise ValueError(f"no rule takes it: {'; '.join(declined)}")


def build_batch(kernels: list[Kernel], folder: Path, name: str, device: str) -> list[tuple[Entry, str]]:
    """Build the kernels of each target into one library, or where that fails each into its own.

    Return entries, and why one failed.
    """
    targets = dict.fromkeys(entry.made.get("target", "cuda-sm90") for entry, _ in kernels)
    found: list[tuple[Entry, str]] = []
    for target in targets:
        of = [kernel for kernel in kernels if kernel[0].made.get("target", "cuda-sm90") == target]
        found += _built(of, folder, f"{name}_{target}", device, target)
    return found


def _built(kernels: list[Kernel], folder: Path, name: str, device: str, target: str) -> list[tuple[Entry, str]]:
    from relaxc.service.errors import CompileFailed

    names = {f"kernel{index}": func for index, (_, func) in enumerate(kernels)}
    library = folder / f"{name}.so"
    try:
        if kernels:
            _build(names, library, device, target)
    except (*_BREAKS, CompileFailed) as error:
        if len(kernels) == 1:
            return [(kernels[0][0], _said(error))]
        alone = [_built([each], folder, f"{name}_{i}", device, target) for i, each in enumerate(kernels)]
        return [found for each in alone for found in each]
    return [
        (Entry(entry.id, entry.suite, entry.case, [str(library)], made={**entry.made, "kernel": kernel}), "")
        for kernel, (entry, _) in zip(names, kernels, strict=True)
    ]


def _build(funcs: Mapping[str, Any], library: Path, device: str, target: str) -> None:
    from relaxc.service.lowering.apply import finish
    from relaxc.service.lowering.build import build_kernels
    from relaxc.service.lowering.target import resolve

    if device == "cuda":
        spec = resolve(target)
        build_kernels({name: finish(func, spec, 2) for name, func in funcs.items()}, spec, library)
        return
    import tvm

    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in funcs.items()})
    tvm.compile(module, target="llvm").export_library(str(library))


if __name__ == "__main__":
    sys.exit(main())

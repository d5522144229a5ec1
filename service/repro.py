"""The command line that asks for the same compile by hand."""

from __future__ import annotations

import shlex

from service.errors import InvalidTarget
from service.lowering.target import resolve
from service.request import CompileRequest, TargetSpec, canonical_json

__all__ = ["repro_command"]


def repro_command(request: CompileRequest, model: str) -> str:
    """`relaxc compile MODEL …` for a shell, with every option that is not the default."""
    options = request.options
    words = ["relaxc", "compile", model, "-o", "out.so", "--target", _target_text(request.target)]
    if options.opt_level != 2:
        words += ["-O", str(options.opt_level)]
    if options.precision is not None:
        words += ["--precision", options.precision.value]
    for name, shape in options.shapes:
        words += ["--shape", f"{name}={','.join(map(str, shape))}"]
    for plugin in options.plugins:
        words += ["--plugin", plugin]
    if not options.verify:
        words += ["--no-verify"]
    if options.seed:
        words += ["--seed", str(options.seed)]
    return shlex.join(words)


def _target_text(target: TargetSpec) -> str:
    """A name that means exactly this target everywhere, else the target's JSON."""
    try:
        if resolve(target.name) == target:
            return target.name
    except InvalidTarget:
        pass
    return canonical_json(target.to_dict())

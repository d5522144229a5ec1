"""The command lines that ask for the same compile by hand, and for the tuning that it lacks."""

from __future__ import annotations

import shlex

from relaxc.service.config import settings
from relaxc.service.errors import InvalidTarget
from relaxc.service.lowering.target import resolve
from relaxc.service.request import CompileOptions, CompileRequest, TargetSpec, canonical_json

__all__ = ["repro_command", "tune_command", "tuned_remedy"]

_FOLDER = "tuning_logs"
"""Where records are proposed to be made, where the compile was told of no other place."""


def repro_command(request: CompileRequest, model: str) -> str:
    """Return `relaxc compile MODEL …` for a shell, with every option that is not the default."""
    options = request.options
    words = ["relaxc", "compile", model, "-o", "out.so", "--target", _target_text(request.target)]
    words += _what_is_compiled(options)
    for place in options.records:
        words += ["--records", place]
    if not options.default_records:
        words += ["--no-records"]
    if options.small_weights:
        words += ["--small-weights"]
    if options.require_tuned is not None:
        words += [f"--require-tuned={options.require_tuned}"]
    if not options.verify:
        words += ["--no-verify"]
    if options.seed:
        words += ["--seed", str(options.seed)]
    return shlex.join(words)


def tuned_remedy(request: CompileRequest) -> str:
    """Return what to do where records are missing: the tuning, and what the compile is to be told of its result."""
    known = request.options.records or (settings().records and request.options.default_records)
    then = "" if known else f", then compile with `--records {shlex.quote(_folder(request.options))}`"
    return f"`{tune_command(request)}` makes them{then}; or compile without --require-tuned."


def tune_command(request: CompileRequest) -> str:
    """Return `relaxc tune MODEL …` that makes the records of this compile, where it looks for them first."""
    options = request.options
    words = ["relaxc", "tune", str(request.model.path)]
    if not _means("auto", request.target):
        words += ["--target", _target_text(request.target)]
    words += _what_is_compiled(options)
    words += ["--records", _folder(options)]
    return shlex.join(words)


def _folder(options: CompileOptions) -> str:
    return options.records[0] if options.records else str(settings().records or _FOLDER)


def _what_is_compiled(options: CompileOptions) -> list[str]:
    """The options that decide which kernels a model has, where they are not the default."""
    words = []
    if options.opt_level != 2:
        words += ["-O", str(options.opt_level)]
    if options.precision is not None:
        words += ["--precision", options.precision.value]
    if (given := options.calibration) is not None:
        words += ["--calibration", given.samples, *([] if given.method == "minmax" else ["--calibrate", given.method])]
        words += [] if given.max_error is None else ["--max-error", f"{given.max_error:g}"]
        words += [word for name in given.keep for word in ("--keep", name)]
    if options.weights is not None:
        words += ["--weights", options.weights]
    for name, shape in options.shapes:
        words += ["--shape", f"{name}={','.join(map(str, shape))}"]
    for name, value in options.values:
        words += ["--value", f"{name}={value}"]
    for name, output in options.state or ():
        words += ["--state", f"{name}={output}"]
    if options.state == ():
        words += ["--state", "none"]
    for plugin in options.plugins:
        words += ["--plugin", plugin]
    return words


def _target_text(target: TargetSpec) -> str:
    """A name that means exactly this target everywhere, else the target's JSON."""
    if _means(target.name, target):
        return target.name
    described = [part.to_dict() for part in target.each]
    return canonical_json(described if target.parts else described[0])


def _means(text: str, target: TargetSpec) -> bool:
    try:
        return resolve(text) == target
    except InvalidTarget:
        return False

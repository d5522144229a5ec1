"""Options that several verbs share, with their help, and the reading of their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.errors import InvalidOption, InvalidShape
from relaxc.service.processor import MOST_THREADS

if TYPE_CHECKING:
    from relaxc.service.request import CompileOptions

__all__ = [
    "Artifact",
    "Json",
    "Keep",
    "MaxError",
    "Method",
    "Model",
    "NoRecords",
    "NoVerify",
    "OptLevel",
    "Plugins",
    "PrecisionName",
    "Records",
    "RequireTuned",
    "Samples",
    "Seed",
    "Shapes",
    "States",
    "Target",
    "Threads",
    "Values",
    "Verbose",
    "Weights",
    "calibration_for",
    "options_for",
    "parse_shapes",
    "parse_state",
    "parse_values",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, also for errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the trace of an error, and the full log.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of the random inputs.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", metavar="N", min=1, max=MOST_THREADS, help="Threads to run with; RELAXC_THREADS if not given."
    ),
]
Artifact = Annotated[
    Path, typer.Argument(metavar="OUT.so", help="A file that `relaxc compile` wrote.", show_default=False)
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An ONNX file, or a .pt2 of torch.export.save.", show_default=False)
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        metavar="T",
        help="`auto` (this CPU), `auto-gpu`, a tag of `relaxc targets`, or target JSON; several with commas.",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=DIMS",
        help="Shape of an input, `x=1,3,224,224`; a name in place of a size keeps that dim symbolic. Repeatable.",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="NAME=NUMBER",
        help="Fix an input of one integer to a value, `sr=16000`; branches that it never takes are left out. "
        "Repeatable.",
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        help="Keep as state what the next call has as an input, `h=hn`; `none` keeps nothing. By default past and "
        "present of one shape, by their names. Repeatable.",
    ),
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="fp32|tf32|fp16|bf16|int8",
        help="Dtype of matmul and convolution operands; the model's if not given. tf32 is float32 on a GPU with "
        "fp16's precision; int8 needs --calibration.",
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="FILE.npz",
        help="Sample inputs for --precision int8: one array per input name, with the samples along the first axis.",
    ),
]
Method = Annotated[
    str,
    typer.Option(
        "--calibrate",
        metavar="minmax|percentile|entropy",
        help="How to choose the activations' ranges from the samples.",
    ),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        metavar="X",
        help="Keep the least accurate layers in floats until, on the samples, no output is off by more than X "
        "times its root mean square (0.05 is 26 dB).",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="LAYER", help="A layer to leave in floats, as the report names it. Repeatable."),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="int8|int4",
        help="Round the constant matrices of products, in blocks of 64; the manifest says what and by how much.",
    ),
]
SmallWeights = Annotated[
    bool,
    typer.Option(
        "--small-weights",
        help="Use no kernel whose weights take more room than the model's: 3x3 convolutions are computed directly, not "
        "by Winograd's algorithm, which is faster on some CPUs and has up to four times the weights.",
    ),
]
OptLevel = Annotated[
    int,
    typer.Option(
        "--opt-level",
        "-O",
        metavar="0..3",
        help="0: no graph optimization; 1: folding and fusion; 2: layouts and schedules; 3: fast math too.",
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="A Python file with passes, patterns or operators. Repeatable."),
]
NoVerify = Annotated[
    bool,
    typer.Option(
        "--no-verify", help="Keep the artifact even if its numbers are wrong; the manifest says what was found."
    ),
]

Records = Annotated[
    list[Path] | None,
    typer.Option(
        "--records",
        metavar="DIR",
        help="Tuning records to use before those that come with relaxc: a folder, or one file. Repeatable; also "
        "RELAXC_RECORDS.",
    ),
]
NoRecords = Annotated[
    bool,
    typer.Option("--no-records", help="Use no tuning records but those of --records."),
]
RequireTuned = Annotated[
    str | None,
    typer.Option(
        "--require-tuned",
        metavar="[=all|hot]",
        help="Fail before the build if a tunable kernel has no record; with =hot, check only the kernels that "
        "make up 95 % of the estimated time.",
        show_default=False,
    ),
]

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def options_for(
    shapes: list[str] | None,
    precision: str | None,
    opt_level: int,
    plugins: list[Path] | None,
    no_verify: bool,
    seed: int,
    records: list[Path] | None = None,
    no_records: bool = False,
    require_tuned: str | None = None,
    weights: str | None = None,
    calibration: dict[str, Any] | None = None,
    small_weights: bool = False,
    values: list[str] | None = None,
    state: list[str] | None = None,
) -> CompileOptions:
    """Return what these options mean, the same that the API and the library take. Raise InvalidOption, InvalidShape."""
    from relaxc.service.request import CompileOptions

    return CompileOptions.from_dict(
        {
            "precision": precision,
            "opt_level": opt_level,
            "shapes": parse_shapes(shapes or []),
            "plugins": [str(path.resolve()) for path in plugins or []],
            "verify": not no_verify,
            "seed": seed,
            "records": [str(path.resolve()) for path in records or []],
            "default_records": not no_records,
            "require_tuned": require_tuned,
            "weights": weights,
            "calibration": calibration,
            "small_weights": small_weights,
            "values": parse_values(values or []),
            "state": parse_state(state) if state else None,
        }
    )


def calibration_for(
    samples: Path | None, method: str, max_error: float | None, keep: list[str] | None
) -> dict[str, Any] | None:
    """Return what these options mean, as JSON values. Raise InvalidOption where some are given without samples."""
    if samples is None:
        if method != "minmax" or max_error is not None or keep:
            raise InvalidOption("--calibrate, --max-error and --keep are for --calibration", option="calibration")
        return None
    return {"samples": str(samples.resolve()), "method": method, "max_error": max_error, "keep": keep or []}


def parse_shapes(given: list[str]) -> dict[str, list[int | str]]:
    """Return `["x=1,3,224,224", "mask=batch,seq"]` as dims by input name; `x=` is a scalar.

    Raise InvalidOption where the text is not NAME=DIMS, InvalidShape for a dim that is neither a size
    nor a name. Input names may hold `=`, dims never do.
    """
    shapes: dict[str, list[int | str]] = {}
    for text in given:
        name, equals, dims = text.rpartition("=")
        if not equals or not name:
            raise InvalidOption(f"--shape takes NAME=1,3,224,224, got {text!r}", option="shape")
        if name in shapes:
            raise InvalidShape(f"--shape names {name!r} twice", name=name)
        shapes[name] = [_dim(name, dim.strip()) for dim in dims.split(",")] if dims.strip() else []
    return shapes


def parse_state(given: list[str]) -> dict[str, str]:
    """Return `["h=hn"]` as outputs by input, `["none"]` as none. Raise InvalidOption for others, or a name twice."""
    if given == ["none"]:
        return {}
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, output = text.partition("=")
        if not equals or not name or not output or name in pairs:
            raise InvalidOption(f"--state takes INPUT=OUTPUT, each input once, or none, got {text!r}", option="state")
        pairs[name] = output
    return pairs


def parse_values(given: list[str]) -> dict[str, int]:
    """Return `["sr=16000"]` as numbers by input name. Raise InvalidOption for other texts, and for a name twice."""
    values: dict[str, int] = {}
    for text in given:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not re.fullmatch(r"-?\d{1,19}", number.strip()):
            raise InvalidOption(f"--value takes NAME=NUMBER, as sr=16000, got {text!r}", option="values")
        if name in values:
            raise InvalidOption(f"--value names {name!r} twice", option="values")
        values[name] = int(number)
    return values


def _dim(name: str, text: str) -> int | str:
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    if _SYMBOL.fullmatch(text):
        return text
    raise InvalidShape(f"--shape {name} has {text!r}, which is neither a size nor a name", name=name)

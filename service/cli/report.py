"""Parts of what verbs print: a signature, a verification, and the PrimFuncs that do the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from relaxc.service.cli.output import seconds, shortened, size, table

if TYPE_CHECKING:
    from rich.table import Table

    from relaxc.service.artifact.manifest import Manifest

__all__ = [
    "calibrated",
    "count",
    "fused",
    "heaviest",
    "left_out",
    "nodes",
    "precisions",
    "prim_funcs",
    "rounded",
    "signature",
    "state",
    "timings",
    "tuned",
    "untemplated",
    "verifications",
]

_NODES = 3
"""Names of nodes that a table shows of a kernel."""

_NAME = 60
"""Characters of a name that a table shows."""

_MUCH = 0.2
"""The share of the estimated time above which a compile warns of kernels without a template."""


def signature(title: str, described: Mapping[str, Any]) -> Table:
    """Print inputs, outputs and state of `Signature.to_dict()`, what sizes must satisfy, and the fixed inputs."""
    shown = table(title, "", "name", "dtype", "shape")
    for kind in ("inputs", "outputs", "state"):
        for tensor in described.get(kind, ()):
            dims = ", ".join(map(str, tensor["shape"]))
            shown.add_row(kind.removesuffix("s"), tensor["name"], tensor["dtype"], f"[{dims}]")
    for name, (low, high) in described["dims"].items():
        shown.add_row("dim", name, "", f"{low}..{'' if high is None else high}")
    for text, why, *_ in described.get("conditions", ()):
        shown.add_row("must hold", why, "", text)
    for name, value in described["constants"].items():
        shown.add_row("fixed", name, type(value).__name__, repr(value))
    return shown


def verifications(manifest: Manifest) -> list[str]:
    """Return what `verification` does, of each part of an artifact."""
    if not manifest.others:
        return verification(manifest)
    return [f"{part.target.name}: {line}" for part in manifest.parts for line in verification(part)]


def verification(manifest: Manifest) -> list[str]:
    """Return what the comparison with the reference found: a line for all, and one for each output that failed."""
    found = manifest.verification
    if isinstance(found, str):
        return [found]
    outputs = found["outputs"]
    worst = max(outputs, key=lambda row: _number(row["max_abs_error"]), default=None)
    line, plural = "passed" if found["passed"] else "FAILED", "s" * (len(outputs) > 1)
    if worst is not None:
        line += (
            f": {len(outputs)} output{plural}, largest error {_number(worst['max_abs_error']):.2g} in {worst['name']}"
        )
    far = [row for row in outputs if row.get("unrounded")]
    if far:
        most = max(far, key=lambda row: float(row["unrounded"]["error"]))
        given = most["unrounded"]
        line += f"; {given['error']:.2g} (rms) from the model with its own weights, cosine {given['cosine']}"
    asked = [f"{row['name']} was judged by {_opinion(row)}" for row in outputs if _opinion(row)]
    weak = [f"weak: {reason}" for reason in found.get("weak", ())]
    return [line, *asked, *weak, *(f"FAILED {_failure(row)}" for row in outputs if not row["passed"])]


def _opinion(row: Mapping[str, Any]) -> str:
    """What judged an output that the reference as it is refused, and how far that was off; empty where none did."""
    if (found := row.get("float64")) is not None:
        ours, theirs = _number(found["artifact"]), _number(found["reference"])
        return f"the reference in float64: ours is off by {ours:.2g}, the reference in float32 by {theirs:.2g} (scaled)"
    if (found := row.get("second_opinion")) is not None:
        ours, apart = _number(found["plain"]), _number(found["apart"])
        return f"the reference without optimizations: ours is off by {ours:.2g}, it with them by {apart:.2g} (scaled)"
    return ""


def _failure(row: Mapping[str, Any]) -> str:
    return (
        f"{row['name']}: error {_number(row['max_abs_error']):.3g}, tolerance {row['tolerance']}, "
        f"would pass at {row['passing_tolerance']}"
    )


def _number(value: Any) -> float:
    return float("inf") if value is None else float(value)


def fused(manifest: Manifest) -> str:
    """Return the kernels of more than one operator, the commonest first: `16 conv2d + bias + relu, …`."""
    fusions: Mapping[str, int] = manifest.passes.get("fusions", {})
    rows = sorted(
        ((number, name) for name, number in fusions.items() if " + " in name), key=lambda row: (-row[0], row[1])
    )
    more = f", and {sum(number for number, _ in rows[4:])} of other kinds" if len(rows) > 4 else ""
    return ", ".join(f"{number} {name}" for number, name in rows[:4]) + more or "none"


def state(manifest: Manifest) -> list[str]:
    """Return what happens to the state of a program in a call: `2 of 3: in place`."""
    told = list(manifest.passes.get("state", {}).values())
    return [f"{told.count(each)} of {len(told)}: {each}" for each in sorted(set(told))]


def tuned(manifest: Manifest) -> str:
    """Return how many of the PrimFuncs a record is behind, and why records that were found are not: `12 of 20
    PrimFuncs`.
    """
    from_records = sum(row["source"] == "record" for row in manifest.schedule)
    unfit = sorted({reason for row in manifest.schedule for _, reason in row.get("passed_over", [])})
    more = f"; records that do not fit: {unfit[0]}" if unfit else ""
    others = f", and {len(unfit) - 1} other reasons" if len(unfit) > 1 else ""
    return f"{from_records} of {len(manifest.schedule)} PrimFuncs by a record{more}{others}"


def untemplated(manifest: Manifest) -> list[str]:
    """Return what share of a GPU's estimated time falls to kernels without a template, a warning where it is large."""
    found = manifest.passes.get("untemplated")
    if found is None:
        return []
    kernels = "".join(f"; {name} ({rule}) {share:.0%}" for name, rule, share in found["kernels"])
    line = f"at least {found['share']:.0%} of the estimated time without one{kernels}"
    return [f"WARNING: {line}: these may take many times as long as they should" if found["share"] > _MUCH else line]


def left_out(manifest: Manifest) -> list[str]:
    """Return which Triton kernels of plugins do not compute a match that is theirs, and why; of parts each once."""
    parts = [part.passes.get("triton_declined", {}) for part in manifest.parts]
    return list(dict.fromkeys(f"{name}: {reason}" for declined in parts for name, reason in declined.items()))


def rounded(manifest: Manifest) -> list[str]:
    """Return what `--weights` rounded and what it kept, and why; nothing without it."""
    found = manifest.passes.get("rounding")
    if not found:
        return []
    kept = ", ".join(f"{number} {reason}" for reason, number in found.get("reasons", {}).items())
    return [f"{len(found['weights'])} matrices rounded to int{found['bits']}" + (f"; kept: {kept}" if kept else "")]


def calibrated(manifest: Manifest) -> list[str]:
    """Return what `--precision int8` did: a line of all, and one for each output; nothing without it."""
    found = manifest.passes.get("calibration")
    if not found:
        return []
    layers = found["layers"]
    int8 = sum(row["precision"] == "int8" for row in layers)
    smoothed = f", {found['smoothed']} norms smoothed" if found["smoothed"] else ""
    lines = [f"{int8} of {len(layers)} layers, by {found['method']} over {found['samples']} samples{smoothed}"]
    for row in found["outputs"]:
        ratio = "no noise" if row["sqnr_db"] is None else f"{row['sqnr_db']} dB"
        worst = f", worst layer {row['worst_layer']}" if row["worst_layer"] else ""
        lines.append(f"{row['name']}: {ratio} from floats, error {row['error']}, cosine {row['cosine']}{worst}")
    return lines


def precisions(manifest: Manifest) -> list[str]:
    """Return in what kernels compute and why, the commonest first; `--json` has each of them."""
    rows = manifest.passes.get("precisions", {}).values()
    found = Counter((row["dtype"], row["why"]) for row in rows)
    return [f"{number} of {dtype}: {why}" for (dtype, why), number in found.most_common()]


def prim_funcs(title: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Print rows of a schedule report: what each PrimFunc computes, and which rule scheduled it."""
    numbers = ("FLOPs", "bytes")
    shown = table(title, "PrimFunc", *numbers, "scheduled by", "parameters", "nodes", numbers=numbers)
    for row in rows:
        parameters = " ".join(f"{name}={value}" for name, value in row["parameters"].items())
        moved = size(row["bytes"]) if isinstance(row["bytes"], int) else row["bytes"]
        name = row.get("kernel", row["rule"])
        by = name if row["source"] == "rule" else f"{name} ({row['source']})"
        shown.add_row(
            shortened(row["function"], _NAME), count(row["flops"]), moved, by, parameters, nodes(row.get("nodes", ()))
        )
    return shown


def nodes(names: Sequence[str]) -> str:
    """Return the model's nodes that a kernel computes, the first of them: `Conv_3, Relu_4, and 6 more`."""
    more = f", and {len(names) - _NODES} more" if len(names) > _NODES else ""
    return ", ".join(shortened(name, _NAME) for name in names[:_NODES]) + more


def heaviest(manifest: Manifest, limit: int) -> list[Mapping[str, Any]]:
    """Return the PrimFuncs with the most FLOPs; those whose number depends on a symbolic size come first."""
    return sorted(manifest.schedule, key=lambda row: -_number(row["flops"] if isinstance(row["flops"], int) else None))[
        :limit
    ]


def count(value: int | str) -> str:
    """Return a number of operations for a person: `3.6 G`; text in symbolic sizes stays as it is."""
    if isinstance(value, str):
        return value
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return str(value)


def timings(build: Mapping[str, Any]) -> Table:
    """Return the steps of a build record, the longest first; those of all workers that ran at once are added up."""
    steps = build.get("timings", {})
    shown = table(f"{len(steps)} steps, of all workers together", "step", "took", numbers=("took",))
    for name, took in sorted(steps.items(), key=lambda step: -step[1]):
        shown.add_row(name, seconds(took))
    return shown

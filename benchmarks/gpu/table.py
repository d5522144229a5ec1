"""The tables of docs/benchmarks_gpu.md, from a bundle's manifest and the rows that measuring it left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu.manifest import Entry, finished

__all__ = ["tables"]

_BY = "\N{MULTIPLICATION SIGN}"


def tables(entries: Sequence[Entry], rows: Iterable[dict[str, Any]]) -> str:
    """Return the tables as Markdown: models, then each suite of kernels, and what is wrong or missing."""
    rows = list(rows)
    done = finished(rows)
    partial = {row["id"]: row for row in rows if row["status"] == "cut" and row["id"] not in done}
    parts = [str(done["device"]["device"]) + "." if "device" in done else "No device has measured this bundle."]
    parts.append(_models(entries, {**partial, **done}))
    suites = sorted({entry.suite for entry in entries} - {"model", "sanitizer", "drawn"})
    parts += [_kernels(suite, [each for each in entries if each.suite == suite], done) for suite in suites]
    parts += [_drawn(entries, done), _sanitized(entries, done), _troubles(entries, done)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    shown = [head, ["---"] * len(head), *([_text(value) for value in line] for line in lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in shown)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-2 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return "" if value is None else str(value)


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _models(entries: Sequence[Entry], rows: dict[str, dict[str, Any]]) -> str:
    """Milliseconds of each model and batch; the ratio is our time over that of torch.compile's better mode."""
    modes = ("reduce-overhead", "max-autotune")
    lines, ratios = [], []
    for entry in (each for each in entries if each.suite == "model" and each.case["mode"] == modes[0]):
        found = [rows.get(entry.id.replace(modes[0], mode), {}) for mode in modes]
        times = [row.get("ms", {}) for row in found]
        first = found[0]
        if not any("error" in row for row in found):
            continue
        measured = [row["ratio"] for row in found if "ratio" in row]
        ratios += [max(measured)] if measured else []
        ours = times[0].get("ours", times[1].get("ours", first.get("alone")))
        theirs = [each.get(mode) for each, mode in zip(times, modes, strict=True)]
        error = next(row["error"] for row in found if "error" in row)
        best = max(measured) if measured else None
        lines.append(
            [entry.case["model"], entry.case["batch"], ours, *theirs, best, times[0].get("eager"), error,
             first.get("eager_error"), *(first.get(whose) for whose in ("worst", "eager_worst")),
             "by moved weights" if first.get("moved") else "", first.get("first_result_s"),
             *(first["bytes"][whose] / 2**20 if "bytes" in first else None for whose in ("ours", "torch"))]
        )  # fmt: skip
    if not lines:
        return ""
    head = ["model", "batch", "relaxc, ms", *modes, "ratio of times", "eager", "error", "error, eager"]
    head += ["worst element", "of eager", "right", "first result, s", "planned, MiB", "torch's peak, MiB"]
    text = _table(head, lines)
    many = f"\n\nGeometric mean of the ratios {_mean(ratios):.2f}, the largest {max(ratios):.2f}." if ratios else ""
    return f"### Models\n{text}{many}"


def _drawn(entries: Sequence[Entry], rows: dict[str, dict[str, Any]]) -> str:
    """Milliseconds of rounded models beside fp16, or how far their numbers are from a CPU's and from fp32."""
    found = [(each.case["model"], rows[each.id]) for each in entries if each.suite == "drawn" and each.id in rows]
    lines = [
        [name, row.get("ms", {}).get("int8"), row.get("ms", {}).get("fp16"), row.get("ratio"),
         *(row.get(key) for key in ("error", "to_fp32", "reference_to_fp32"))]
        for name, row in found
    ]  # fmt: skip
    head = ["model", "int8, ms", "fp16, ms", "ratio", "off the reference", "off fp32", "the reference off fp32"]
    return f"### Rounded models\n{_table(head, lines)}" if lines else ""


def _kernels(suite: str, entries: Sequence[Entry], rows: dict[str, dict[str, Any]]) -> str:
    """Microseconds of the timed kernels, and how many of all are right."""
    found = [(entry, rows[entry.id]) for entry in entries if entry.id in rows]
    if not found:
        return ""
    lines, ratios = [], []
    for entry, row in found:
        if "us" in row and row["ratio"] is not None:
            peer, us = min(((name, us) for name, us in row["us"].items() if name != "ours"), key=lambda pair: pair[1])
            ratios.append(row["ratio"])
            lines.append([_described(entry), row["us"]["ours"], us, peer, row["ratio"], row["tflops"], row["gb_per_s"]])
    right = sum(bool(row.get("right")) for _, row in found)
    text = f"### {suite}\n{right} of {len(found)} are right, with equal bits on repetition; {len(entries)} are planned."
    if lines:
        head = ["case", "relaxc, µs", "peer, µs", "peer", "its time over ours", "TFLOP/s", "GB/s"]
        text += f" Geometric mean {_mean(ratios):.2f}, the least {min(ratios):.2f}.\n\n{_table(head, lines)}"
    return text


def _described(entry: Entry) -> str:
    """A case in few words: its sizes, then what is not usual."""
    case = entry.case
    usual = {"dtype": "float16", "out": "float16", "epilogue": "none", "mask": "none", "before": "none",
             "behind": "none", "causal": None, "target": "cuda-sm90"}  # fmt: skip
    if "heads" in case:
        text = f"{case['batch']}{_BY}{case['heads']}{_BY}{case['queries']}, {case['keys']}{_BY}{case['head']}"
        text += f", {case['shared']} of keys" if case["shared"] else ""
    elif "image" in case:
        kind, image = case.get("kind", "taps"), _BY.join(map(str, case["image"]))
        text = f"{kind} {image} to {case['filters']}, {case['kernel'][0]}{_BY}"
        text += f"{case['kernel'][1]} by {case['strides'][0]}"
    elif "m" in case:
        text = f"{case.get('batch', 1)}{_BY}({case['m']}{_BY}{case['n']}{_BY}{case['k']})"
        text += "" if case.get("n_major", True) else ", B by columns"
    else:
        text = f"{case['kind']} {_BY.join(map(str, case['shape']))}, {case['dtype']}"
    extra = [f"{name} {case[name]}" for name, value in usual.items() if name in case and case[name] != value]
    given = case.get("parameters")
    return ", ".join([text, *extra, *([f"at {given}"] if given else [])]).replace("|", "/")


def _sanitized(entries: Sequence[Entry], rows: dict[str, dict[str, Any]]) -> str:
    found = [(each, rows[each.id]) for each in entries if each.suite == "sanitizer" and each.id in rows]
    lines = [[each.case["of"], each.case["tool"], row.get("checked"), row.get("right")] for each, row in found]
    return f"### compute-sanitizer\n{_table(['suite', 'tool', 'kernels', 'clean'], lines)}" if lines else ""


def _troubles(entries: Sequence[Entry], rows: dict[str, dict[str, Any]]) -> str:
    """What is wrong, what failed, and how many were not reached."""
    named = {entry.id: entry for entry in entries}
    lines = []
    for name, row in rows.items():
        if name in named and (row["status"] == "failed" or not row.get("right", True)):
            why = row.get("failed") or row.get("said") or f"error {row.get('error')}, {row.get('wrong') or ''}"
            what = "" if named[name].suite in ("model", "sanitizer", "threads", "drawn") else _described(named[name])
            lines.append(f"- `{name}` {what}: {' '.join(why.split())[:300]}")
    missing = sum(entry.id not in rows for entry in entries)
    head = f"{missing} of {len(entries)} entries were not reached."
    return "\n".join([head, *lines])

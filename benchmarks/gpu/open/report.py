"""What the rows of drawn networks say together: ratios, wrong numbers, and the kernels to blame."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log
from typing import Any

__all__ = ["mean_ratio", "report"]

_BAR = 1.10
_SHOWN = 24


def mean_ratio(rows: Sequence[dict[str, Any]]) -> float:
    """Return the geometric mean of our time over torch's; 0 of no rows."""
    return exp(sum(log(row["ratio"]) for row in rows) / len(rows)) if rows else 0.0


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return the summary as text."""
    timed = [row for row in rows if "ratio" in row]
    wrong = [row for row in rows if not row.get("right", False) and "failed" not in row]
    failed = [row for row in rows if "failed" in row]
    cards = ", ".join(sorted({row["device"] for row in timed}))
    lines = [f"{len(timed)} networks timed on {cards or 'nothing'}, {len(failed)} failed, {len(wrong)} wrong"]
    for batch in sorted({row["batch"] for row in timed}):
        lines.append(_summary(f"batch {batch}", [row for row in timed if row["batch"] == batch]))
    lines.append(_summary("all", timed))
    lines += [
        f"slow: {_of(row)} {row['ratio']}" for row in sorted(timed, key=lambda r: -r["ratio"]) if row["ratio"] > _BAR
    ]
    lines += [f"wrong: {_of(row)} error {row['error']:.1e}, eager's {row['eager_error']:.1e}" for row in wrong]
    lines += [f"failed: {_of(row)} {row['failed'][:300]}" for row in failed]
    return "\n".join([*lines, "", *_blame(timed)])


def _of(row: dict[str, Any]) -> str:
    return f"{row['seed']}:{row['batch']} {row.get('kind', '')} {row.get('dtype', '')}"


def _summary(name: str, rows: Sequence[dict[str, Any]]) -> str:
    above = sum(row["ratio"] > _BAR for row in rows)
    us = sum(row["us"] for row in rows) or 1.0
    without = sum(row["without"] * row["us"] for row in rows) / us
    return (
        f"{name}: {mean_ratio(rows):.3f} of torch.compile's time, {above} of {len(rows)} above {_BAR}, "
        f"{without:.0%} of the time without a template"
    )


def _blame(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The share of the time of each rule, each network as much as another, and the kernels that took most of theirs."""
    shares: Counter[str] = Counter()
    kernels = []
    for row in rows:
        for rule, share in row["shares"].items():
            shares[rule] += share / len(rows)
        total = row["us"] or 1.0
        kernels += [(us / total, us, rule, name, shapes, _of(row)) for name, rule, shapes, _, us in row["kernels"]]
    lines = ["time by rule:", *(f"  {share:6.1%} {rule}" for rule, share in shares.most_common())]
    lines.append("kernels to blame:")
    for share, us, rule, name, shapes, of in sorted(kernels, reverse=True)[:_SHOWN]:
        lines.append(f"  {share:4.0%} {us:8.1f} us {rule} {name} {shapes} in {of}")
    return lines

"""What the rows of random kernels say together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["is_bad", "report"]

Rows = Sequence[dict[str, Any]]


def is_bad(row: dict[str, Any]) -> bool:
    """Return whether a kernel is wrong, or could not be compiled or run."""
    return row["status"] != "skipped" and (row["status"] == "failed" or not row.get("right", False))


def report(rows: Rows, wanted: int) -> str:
    """Return counts by rule and by family, the share that templates took, and each that is bad."""
    left, skipped = wanted - len(rows), sum(row["status"] == "skipped" for row in rows)
    rows = [row for row in rows if row["status"] != "skipped"]
    lines = [*_counts("rule", rows), "", *_counts("family", rows), ""]
    taken = sum(bool(row.get("template")) for row in rows)
    share = taken / max(1, len(rows))
    lines.append(f"templates took {taken} of {len(rows)} ({share:.0%}); {left} are left, {skipped} skipped")
    again = [row["id"] for row in rows if row.get("again") and not is_bad(row)]
    lines += [f"right at the second try: {', '.join(again)}"] if again else []
    bad = [row for row in rows if is_bad(row)]
    lines.append(f"{len(bad)} of {len(rows)} are wrong or failed")
    lines += [f"- {row['id']} {row.get('rule', '')} {_why(row)}" for row in bad]
    return "\n".join(lines)


def _counts(name: str, rows: Rows) -> list[str]:
    """A line for each value of `name`: how many are right, how many are not, and the largest share of a tolerance."""
    found = []
    for value in sorted({str(row.get(name, "not built")) for row in rows}):
        chosen = [row for row in rows if str(row.get(name, "not built")) == value]
        bad = sum(map(is_bad, chosen))
        used = max((row["error"] / row["tolerance"] for row in chosen if row.get("tolerance")), default=0.0)
        found.append(f"{value:24} right {len(chosen) - bad:5}  bad {bad:4}  at most {used:.2f} of the tolerance")
    return found


def _why(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])[-300:]
    names = ("error", "worst", "equal_bits", "same_nan", "same_infinities", "inputs_kept", "wrote_inside", "wrong")
    return str({name: row[name] for name in names if name in row})

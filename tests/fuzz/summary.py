"""What a journal says: how many graphs, what came of them, which operators of which dtypes were in those that ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tests.fuzz.check import BAD
from tests.fuzz.findings import Known

__all__ = ["new_findings", "summary"]


def new_findings(rows: Iterable[Mapping[str, Any]], known: Known) -> dict[str, list[Mapping[str, Any]]]:
    """Return the findings that are not listed as known, by signature."""
    found = defaultdict(list)
    for row in rows:
        if row["kind"] in BAD and not known.has(row.get("signature")):
            found[str(row.get("signature"))].append(row)
    return dict(found)


def summary(rows: list[dict[str, Any]], known: Known, operators: Iterable[str]) -> str:
    """Return the table that ends a run."""
    kinds = Counter(row["kind"] for row in rows)
    ran = [row for row in rows if row["kind"] in ("ok", "wrong", "caught", "rejected")]
    nodes: Counter[str] = Counter()
    for row in ran:
        nodes.update(row.get("nodes", {}))
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    for name, count in nodes.items():
        op, dtype = name.split(" ")
        by_operator[op][dtype] += count
    wanted = [op for op in operators if op not in known.operators]
    lines = [
        f"graphs: {len(rows)}; {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}",
        f"compared: {sum(row.get('compared', 0) for row in ran):,} numbers; "
        f"{sum(row.get('unsaid', 0) for row in ran):,} more are NaN or unstable, and were not",
        f"nodes in graphs that ran: {sum(nodes.values())}; of {len(wanted)} operators {len(by_operator)}, "
        f"{sum(sum(each.values()) >= 20 for each in by_operator.values())} of them 20 times",
        f"never ran: {', '.join(op for op in wanted if op not in by_operator) or 'none'}",
        f"left out as known: {', '.join(known.operators) or 'none'}",
    ]
    refused = Counter(str(row.get("said", ""))[:100] for row in rows if row["kind"] == "refused")
    lines += [f"refused {count}: {said}" for said, count in refused.most_common(8)]
    found = new_findings(rows, known)
    order = {kind: place for place, kind in enumerate(BAD)}
    for name, each in sorted(found.items(), key=lambda item: (order[item[1][0]["kind"]], -len(item[1]))):
        lines.append(f"{len(each)} times {name}; index {each[0]['index']}")
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    """Return how often each operator ran by dtype."""
    nodes: Counter[str] = Counter()
    for row in rows:
        if row["kind"] in ("ok", "wrong", "caught", "rejected"):
            nodes.update(row.get("nodes", {}))
    by_operator: dict[str, list[str]] = defaultdict(list)
    for name, count in sorted(nodes.items()):
        op, dtype = name.split(" ")
        by_operator[op].append(f"{dtype} {count}")
    return "\n".join(f"{op}: {', '.join(each)}" for op, each in sorted(by_operator.items()))

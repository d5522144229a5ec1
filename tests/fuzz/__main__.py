"""Random graphs of a seed: `python -m tests.fuzz --seed WORD --limit-s 300`; docs/fuzzing.md says what it finds.

Exit code 1 where a finding of a kind in `--fails` is not listed in known.json. A run goes on where the journal ends.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.check import BAD
from tests.fuzz.findings import Known
from tests.fuzz.run import Plan, fuzz, read
from tests.fuzz.summary import new_findings, summary, table

__all__ = ["main"]

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str]) -> int:
    """Return 1 where something new was found, or nothing was compared, else 0."""
    from tests.fuzz.operators import operators

    asked = _parsed(arguments)
    folder = asked.folder or ROOT / "build" / "fuzz" / asked.seed
    known = Known.read()
    if asked.summary:
        rows = read(folder)
        print(table(rows))
    else:
        print(f"fuzz {asked.seed}: to repeat it, make fuzz SEED={asked.seed}; what it finds is in {folder}", flush=True)
        rows = fuzz(Plan(folder, asked.seed, asked.count, asked.limit_s, asked.workers, asked.shrink_s, known))
    print(summary(rows, known, operators()))
    if not any(row.get("compared") for row in rows):
        print("nothing was compared")
        return 1
    kinds = {row["kind"] for found in new_findings(rows, known).values() for row in found}
    return int(bool(kinds & set(asked.fails.split(","))))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--count", type=int, default=10_000, help="how many graphs")
    parser.add_argument("--limit-s", type=float, default=1e9, help="no graph is begun after so many seconds")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shrink-s", type=float, default=60.0, help="what shrinking a finding may take")
    parser.add_argument("--fails", default=",".join(BAD), help="kinds of findings that fail the run; all by default")
    parser.add_argument("--folder", type=Path, help="of journal and findings; build/fuzz/SEED by default")
    parser.add_argument("--summary", action="store_true", help="say what the journal has, and check nothing")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

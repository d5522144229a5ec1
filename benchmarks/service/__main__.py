"""Measures what the service bears, on this machine, with a real server and a load generator beside it.

    python -m benchmarks.service --work work                  everything
    python -m benchmarks.service --work work gets download    these

The generator is ours, on raw sockets in a process of its own (`benchmarks/service/load.py`), so its time is part of
every rate. What has to be compiled before is compiled by the first run and stays in the work folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.service.bars import table
from benchmarks.service.measures import MEASURES
from benchmarks.service.work import prepare


def main() -> int:
    """Prints a table and JSON lines; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measures", nargs="*", metavar="MEASURE", help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for models and the server's cache")
    parser.add_argument("--prepare", action="store_true", help="only compile what the measures need")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file for the JSON lines as well")
    wanted = parser.parse_args()
    unknown = sorted(set(wanted.measures) - set(MEASURES))
    if unknown:
        parser.error(f"no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    work = prepare(wanted.work)
    if wanted.prepare:
        return 0
    figures = [figure for name in wanted.measures or MEASURES for figure in MEASURES[name](wanted.work, work)]
    Console(width=160 if not sys.stdout.isatty() else None).print(table(figures))
    lines = "".join(f"{figure.to_json()}\n" for figure in figures)
    print(lines, end="")
    if wanted.out:
        wanted.out.write_text(lines)
    return int(any(figure.holds is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())

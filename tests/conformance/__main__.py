"""`python -m tests.conformance`: a draw of ONNX's node tests through `relaxc compile`, and what became of each."""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.conformance.onnx_cases import Outcome, all_cases
from tests.conformance.onnx_worker import run_cases

_NAMES = re.compile(r"'[^']*'|\d[\d.e+-]*")
_SHOWN = 4
_REASON_CHARS = 150


def main() -> None:
    """Run what the results file does not have yet; it gets a line for each case as it ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--count", type=int, help="cases to draw; all of them if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--match", default="", help="draw from the cases whose names this regular expression finds")
    parser.add_argument("--results", type=Path, help="a file of JSON lines to go on with; `pass` is not run again")
    parser.add_argument("--again", action="store_true", help="run what did not pass before once more")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    names = drawn([name for name in all_cases() if re.search(arguments.match, name)], arguments.count, arguments.seed)
    known = read(arguments.results)
    kept = {name: each for name, each in known.items() if not arguments.again or each.status == "pass"}

    def done(outcome: Outcome) -> None:
        if arguments.results is not None:
            with arguments.results.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")

    waiting = [name for name in names if name not in kept]
    found = kept | run_cases(waiting, arguments.processes, compiled=True, done=done)
    print(table([found[name] for name in names]))


def drawn(names: list[str], count: int | None, seed: int) -> list[str]:
    """The first `count` of the names in the order of a seed: of two counts the smaller draw is part of the larger."""
    shuffled = sorted(names)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]


def read(results: Path | None) -> dict[str, Outcome]:
    """What a results file has of each case: the last line counts."""
    if results is None or not results.exists():
        return {}
    outcomes = [Outcome(**json.loads(line)) for line in results.read_text().splitlines()]
    return {outcome.case: outcome for outcome in outcomes}


def table(outcomes: Iterable[Outcome]) -> str:
    """How many cases ended how, and for what reason, most frequent first."""
    outcomes = list(outcomes)
    kinds: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in outcomes:
        kinds[each.status, _NAMES.sub("…", each.detail)[:_REASON_CHARS]].append(each.case)
    rows = sorted(kinds.items(), key=lambda item: (item[0][0] != "pass", -len(item[1]), item[0]))
    lines = [f"{sum(each.status == 'pass' for each in outcomes)} of {len(outcomes)} pass"]
    for (status, reason), names in rows:
        shown = "" if status == "pass" else f" {reason} [{', '.join(names[:_SHOWN])}]"
        lines.append(f"{len(names):5} {status}{shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

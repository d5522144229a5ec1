"""`python -m tests.replay BASE [HEAD]`: which kernels of the zoo two commits build differently.

Exit code 1 where any is. Without HEAD it is the working tree that is compared. What was built stays in build/replay, so
that a run that was cut off goes on, and BASE is built once. A name of `--models` may also be one of the zoo's others.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests import zoo
from tests.replay.cases import FORMS, TARGETS, Case, NoSuchForm, chosen, model_file, sources_digest
from tests.replay.compare import changes
from tests.replay.side import ROOT, WORKING, Side

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Return 1 where a kernel changed, else 0."""
    asked = _parsed(arguments)
    cases = chosen(asked.models, asked.forms, asked.targets, most=asked.sample, seed=asked.seed)
    base, head = (Side(commit, asked.folder) for commit in (asked.base, asked.head))
    if base.digest == head.digest:
        print(f"{base.commit} and {head.commit} have the same service, schedules and tuning_logs")
        return 0
    try:
        return _replay(cases, base, head, asked.folder, asked.texts)
    finally:
        base.close()
        head.close()


def _replay(cases: Sequence[Case], base: Side, head: Side, folder: Path, texts: Path | None) -> int:
    models = folder / "models" / _zoo_digest()
    models.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(2) as both:
        for number, case in enumerate(cases, 1):
            try:
                model = model_file(case, models)
            except NoSuchForm as error:
                counts["forms that there are not"] += 1
                _progress(f"{case.id}: {error}")
                continue
            asked = [(side, texts and texts / case.id / name) for side, name in ((base, "base"), (head, "head"))]
            before, after = both.map(partial(_build, case, model), asked)
            found = list(changes(before, after))
            counts["cases"] += 1
            counts["kernels"] += len(after.get("kernels", ()))
            counts["cases that neither builds"] += "kernels" not in before and "kernels" not in after
            counts["changes"] += len(found)
            for name, said in found:
                _progress("")
                print(f"{case.id}: {name}: {said}", flush=True)
            _progress(f"{number} of {len(cases)}, {counts['changes']} changes; {case.id}")
    _progress("")
    print(f"{base.commit} → {head.commit}: {', '.join(f'{count} {what}' for what, count in counts.items())}")
    return int(counts["changes"] > 0)


def _build(case: Case, model: Path, asked: tuple[Side, Path | None]) -> dict[str, Any]:
    side, texts = asked
    return side.build(case, model, texts)


def _progress(line: str) -> None:
    """On a terminal it replaces the line before."""
    end = "\r" if sys.stderr.isatty() else "\n"
    if line or end == "\r":
        print(f"\033[2K{line}" if end == "\r" else line, end=end, file=sys.stderr, flush=True)


def _zoo_digest() -> str:
    quantizer = ROOT / "benchmarks" / "peers" / "quantize.py"
    return sources_digest([*Path(zoo.__file__).parent.glob("*.py"), quantizer, Path(__file__).with_name("cases.py")])


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    def names(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parsed(text: str) -> list[str]:
            if unknown := set(text.split(",")) - set(known):
                raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(known)}")
            return text.split(",")

        return parsed

    families = zoo.names()
    parser = argparse.ArgumentParser(prog="python -m tests.replay", description=__doc__)
    parser.add_argument("base", help="a commit")
    parser.add_argument("head", nargs="?", default=WORKING, help="another one, or nothing for the working tree")
    parser.add_argument("--models", type=names([*families, *zoo.names(others=True)]), default=families)
    parser.add_argument("--forms", type=names(FORMS), default=FORMS)
    parser.add_argument("--targets", type=names(TARGETS), default=TARGETS)
    parser.add_argument("--sample", type=int, metavar="N", help="so many of all cases, drawn by --seed")
    parser.add_argument("--seed", default="", metavar="WORD")
    parser.add_argument(
        "--texts", type=Path, metavar="DIR", help="build again, and write what `diff -r` compares there"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "replay")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

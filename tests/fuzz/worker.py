"""A process that draws, compiles and compares: lines of JSON in and out; its death is a finding."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Answer each line of standard input: `draw` a graph of a seed and check it, or `check` or `cut` one in files."""
    out = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    log = Path(sys.argv[1])

    def say(row: dict[str, Any]) -> None:
        print(json.dumps(row), file=out, flush=True)

    for line in sys.stdin:
        asked = json.loads(line)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)  # what the last case says before it dies
        start = time.monotonic()
        try:
            row = _answer(asked, say)
        except Exception:  # noqa: BLE001  # a fault of the fuzzer's own
            row = {"kind": "broken", "said": traceback.format_exc()[-1500:]}
        say({**row, "seconds": round(time.monotonic() - start, 2), "done": True})


def _answer(asked: dict[str, Any], say: Any) -> dict[str, Any]:
    from tests.fuzz.case import Case
    from tests.fuzz.check import check
    from tests.fuzz.draw import draw

    if "index" in asked:
        made = draw(asked["seed"], asked["index"], asked["without"])
        if not made.case.nodes or not made.case.outputs:
            return {"kind": "weak", "said": "no node was drawn"}
        made.case.save(Path(asked["folder"]))
        say({"drawn": len(made.case.nodes)})
        return {"size": len(made.case.nodes), "nodes": made.nodes, "options": made.case.options, **check(made.case)}
    return check(Case.load(Path(asked["folder"])))


if __name__ == "__main__":
    main()

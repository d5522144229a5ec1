"""Stands in for a child on a GPU machine: says at once what the entry's case tells it to."""

from __future__ import annotations

import json
import sys


def say(**row: object) -> None:
    print("@" + json.dumps(row), flush=True)


say(ready=True, device="a device of the test")
for line in sys.stdin:
    entry = json.loads(line)
    case = entry["case"]
    if case.get("dies"):
        print("no such instruction", file=sys.stderr)
        sys.exit(3)
    if case.get("hangs"):
        sys.stdin.readline()
    say(id=entry["id"], turn=True, found={"right": True, "error": 1e-4})
    if case.get("hangs alone"):
        sys.stdin.readline()  # the turn
        sys.stdin.readline()
    assert sys.stdin.readline() == "go\n"
    say(id=entry["id"], turn=False)
    say(id=entry["id"], status="done", **case.get("row", {"right": True}))

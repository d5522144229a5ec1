"""Stands in for the processes that compile and check random kernels: `compile` or `check`, and what goes wrong."""

from __future__ import annotations

import json
import sys


def say(**row: object) -> None:
    print("@" + json.dumps(row), flush=True)


def main() -> None:
    mode, _, trouble = sys.argv[1].partition(":")
    kind, _, chosen = trouble.partition("=")
    if mode == "check":
        say(ready=True)
    for line in sys.stdin:
        given = json.loads(line)
        names = [f"{given['seed']}:{index}" for index in given["indices"]] if mode == "compile" else [given["id"]]
        for name in names:
            if kind == "dies" and name == chosen:
                print("no such instruction", file=sys.stderr)
                sys.exit(3)
            if kind == "hangs":
                sys.stdin.readline()
            if mode == "compile":
                made = {"family": "gemm", "rule": "a rule", "template": True, "parameters": {}}
                say(id=name, entry={"id": name, "suite": "gemm", "case": {}, "made": made})
            else:
                say(id=name, status="done", right=not (kind == "wrong" and name == chosen), error=1e-4, tolerance=1e-3)
        if mode == "compile":
            say(done=True)


if __name__ == "__main__":
    main()

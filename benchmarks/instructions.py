"""The instructions that `relaxc targets` measures beside the operations a cycle that are documented, on one core.

    python -m benchmarks.instructions [--rounds 30]

The clock is measured in the same rounds: a chain of additions in a register, each of which waits for the one before,
is one cycle each on every core of the hardware table. What is documented is the CPU's row (`schedules/hardware.py`,
with its sources): instructions that start in a cycle. Rounds are a few milliseconds, by turns, as a core's clock moves;
a share is that of a round beside the clock right before and behind it, and what is shown their median.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from relaxc.schedules.hardware import cpu_of
from relaxc.service import machine
from relaxc.service.lowering.target import resolve, to_tvm
from relaxc.service.runtime import probes
from relaxc.service.runtime.peak import vectors
from relaxc.service.runtime.threads import use_threads

__all__ = ["BAR", "main", "shares"]

BAR = 0.95
"""Of the documented operations a cycle."""

_REPEATS = 200_000
_CHAIN, _LOOPS = 64, 200_000
_ADD = {"x86_64": "add %1, %0", "aarch64": "add %0, %0, %1"}
_OPERANDS: dict[str, str | tuple[str, str]] = {"fma": "float32", "bfloat16": "bfloat16", "uint8": ("uint8", "int8")}


def chain(folder: Path) -> Callable[[], Any]:
    """Return what runs `_CHAIN * _LOOPS` additions, each of which needs the one before. RuntimeError without a compiler
    or on an architecture whose instruction is not known.
    """
    add = _ADD.get(platform.machine())
    if add is None:
        raise RuntimeError("no chain of additions is known for this architecture")
    source, library = folder / "chain.cc", folder / "chain.so"
    # A loop's own counter and branch are beside the chain: 2 instructions of 66, none of which it waits for.
    steps = " ".join(f'__asm__ volatile("{add}" : "+r"(sum) : "r"(step));' for _ in range(_CHAIN))
    source.write_text(
        f'extern "C" long chain(long loops, long step) {{ long sum = 0; for (long i = 0; i < loops; ++i) {{ {steps} }} '
        "return sum; }\n"
    )
    done = subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], capture_output=True)
    if done.returncode:
        raise RuntimeError(f"g++ failed: {done.stderr.decode(errors='replace')}")
    function = ctypes.CDLL(str(library)).chain
    function.restype, function.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long]
    return partial(function, _LOOPS, 1)


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@dataclass(frozen=True)
class _Loop:
    """What runs an instruction `count` times, of which `a_cycle` start in a cycle by the documents."""

    run: Callable[[], Any]
    count: int
    a_cycle: float


def _loops() -> dict[str, _Loop]:
    use_threads(1)
    lanes, target = vectors()
    cpu = cpu_of(to_tvm(resolve("auto")))
    dots = probes.fastest(machine.host_features())
    functions = {"fma": probes.fma(1, lanes, _REPEATS)}
    functions |= {name: probes.products(1, dot.lanes(lanes), _REPEATS, dot) for name, dot in dots.items()}
    library = probes.build(functions, target)
    found: dict[str, _Loop] = {}
    for name in functions:
        dot = dots.get(name)
        chains, each = (probes.CHAINS, lanes) if dot is None else (dot.chains, dot.lanes(lanes))
        operand = np.zeros(each, "float32" if dot is None else "int32")
        sums = np.zeros(chains * each, "float32" if dot is None else dot.sums)
        run = partial(library[name], tvm.runtime.tensor(operand), tvm.runtime.tensor(sums))
        found[name] = _Loop(run, chains * _REPEATS, cpu.dot(_OPERANDS[name]).throughput)
    return found


def shares(rounds: int) -> dict[str, dict[str, float]]:
    """Return for each instruction: the `share` of the documented operations a cycle, instructions `a_cycle` by the
    documents, and the `clock_ghz`.
    """
    with tempfile.TemporaryDirectory() as folder:
        clock = chain(Path(folder))
        loops = _loops()
        for run in (clock, *(loop.run for loop in loops.values())):
            run()
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
        for _ in range(rounds):
            for name, loop in loops.items():
                before, seconds, behind = _seconds(clock), _seconds(loop.run), _seconds(clock)
                hertz = _CHAIN * _LOOPS / ((before + behind) / 2)
                found[name].append((loop.count / loop.a_cycle / seconds / hertz, hertz / 1e9))
    return {
        name: {
            "share": round(statistics.median(share for share, _ in each), 4),
            "a_cycle": loops[name].a_cycle,
            "clock_ghz": round(statistics.median(clock for _, clock in each), 3),
        }
        for name, each in found.items()
    }


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 1 where an instruction is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    found = shares(parser.parse_args(argv).rounds)
    for name, each in found.items():
        said = f"{each['share']:.1%} of {each['a_cycle']:g} a cycle at {each['clock_ghz']} GHz"
        print(f"{name}: {said}{'' if each['share'] >= BAR else ', under the bar'}", file=sys.stderr)
    print(json.dumps(found))
    return 0 if all(each["share"] >= BAR for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

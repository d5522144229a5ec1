"""The build half: models and kernels compiled for sm_90a where no GPU need be, into a folder that is carried to one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.gpu import masked_cases, moves_cases, plain_cases
from benchmarks.gpu.drawn import drawn_entries
from benchmarks.gpu.manifest import MANIFEST, Entry, read_manifest, write_manifest
from benchmarks.gpu.plan import kernel_entries, model_entries, sanitizer_entries, thread_entries

__all__ = ["build", "build_kernel_of", "described"]

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "torch")


def build(
    folder: Path, *, suites: Iterable[str] = (), models: Iterable[str] = (), target: str = "", jobs: int = 1
) -> list[Entry]:
    """Compile what the folder lacks, write its manifest, and return the entries.

    `suites`, `models` and `target` choose some; what an earlier build made stays in the manifest. What
    fails is named on stderr and left out: a bundle of the rest is worth its minutes. Models for
    another target go into a folder of their own, since what is there is kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = set(suites)
    kept = {entry.id: entry for entry in read_manifest(folder)[1]} if (folder / MANIFEST).exists() else {}
    if not wanted or "model" in wanted:
        _models(folder, models, kept, target or "cuda-sm90")
    if not wanted or "drawn" in wanted:
        _drawn(folder, kept)
    chosen = [
        (entry, case)
        for entry, case in kernel_entries()
        if (not wanted or entry.suite in wanted) and target in ("", getattr(case, "target", "cuda-sm90"))
    ]
    if chosen:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            for entry in pool.map(partial(build_kernel_of, folder=folder), chosen):
                if entry is not None:
                    kept[entry.id] = entry
    made = [entry for entry in kept.values() if entry.suite not in ("sanitizer", "threads")]
    checks = sanitizer_entries([entry for entry in made if entry.suite not in ("model", "drawn")])
    entries = [*made, *thread_entries(made), *(entry for entry in checks if entry.case["ids"])]
    write_manifest(folder, entries, _about())
    return entries


def _models(folder: Path, only: Iterable[str], kept: dict[str, Entry], target: str) -> None:
    """A process a model: each takes gigabytes, and one that fails takes no other with it."""
    for entry in model_entries(only):
        stem = folder / entry.files[0].removesuffix(".so")
        said = stem.with_suffix(".made")
        if not said.exists():
            arguments = [str(folder), entry.case["model"], str(entry.case["batch"]), target]
            command = [sys.executable, "-m", "benchmarks.gpu.build", *arguments]
            if subprocess.run(command, check=False).returncode:
                print(f"{entry.id} is left out", file=sys.stderr)
                continue
        kept[entry.id] = replace(entry, made=json.loads(said.read_text()))


def _drawn(folder: Path, kept: dict[str, Entry]) -> None:
    """Likewise a process each."""
    for entry in drawn_entries():
        if not all((folder / file).exists() for file in entry.files):
            command = [sys.executable, "-m", "benchmarks.gpu.drawn_build", entry.case["model"], str(folder)]
            if subprocess.run(command, check=False).returncode:
                print(f"{entry.id} is left out", file=sys.stderr)
                continue
        kept[entry.id] = entry


def build_kernel_of(work: tuple[Entry, Any], folder: Path) -> Entry | None:
    """Compile one kernel with its case's parameters, or those nearest in its space; None where that fails."""
    from relaxc.schedules.template import Declined
    from relaxc.service.errors import CompileFailed
    from relaxc.service.lowering.apply import finish
    from relaxc.service.lowering.build import build_kernel
    from relaxc.service.lowering.target import resolve

    entry, case = work
    spec = resolve(getattr(case, "target", "cuda-sm90"))
    func = _prim_func(entry.suite, case)
    made = _schedule(entry, case, func)
    if isinstance(made, Declined):
        print(f"{entry.id} is left out: {made.reason}: {case}", file=sys.stderr)
        return None
    rule, scheduled = made
    library = f"{entry.id.replace('/', '_')}.so"
    try:
        if not (folder / library).exists():
            build_kernel(finish(scheduled.func, spec, 2), spec, folder / library)
    except CompileFailed as error:
        print(f"{entry.id} is left out: {error}: {dict(scheduled.parameters)}: {case}", file=sys.stderr)
        return None
    names = [str(buffer.name) for buffer in func.params]
    said = {"rule": rule, "parameters": dict(scheduled.parameters), "operands": names}
    return replace(entry, case=described(entry, case), files=[library], made=said)


def _prim_func(suite: str, case: Any) -> Any:
    from benchmarks.gpu.plan import CASES

    return CASES[suite].prim_func(case)


def _schedule(entry: Entry, case: Any, func: Any) -> Any:
    """(the rule's name, what it made) of the rule that is meant, at a point where one is asked for, or Declined."""
    from relaxc.schedules.cuda import RULES
    from relaxc.schedules.template import Declined
    from relaxc.service.lowering.target import resolve, to_tvm

    target = to_tvm(resolve(getattr(case, "target", "cuda-sm90")))
    meant = getattr(case, "rule", "")
    result: Any = Declined("no rule takes it")
    for rule in RULES:
        if meant not in ("", rule.name):
            continue
        result = rule.apply(func, target)
        if isinstance(result, Declined) and not meant:
            continue  # what is unconfirmed is only built where it is meant
        for point in _points(entry, case, rule, func, target):
            made = rule.apply(func, target, point)
            if not isinstance(made, Declined):
                return rule.name, made  # else the tile does not fit, and the next one is nearer to the default
        if not isinstance(result, Declined):
            return rule.name, result
    return result


def _points(entry: Entry, case: Any, rule: Any, func: Any, target: Any) -> list[dict[str, int]]:
    """What the case asks for, as near as the space has it; then what is proposed where the template has no default."""
    from relaxc.schedules.template import Declined

    if not rule.since or isinstance(proposed := rule.proposed(func, target), Declined):
        return []
    space, wanted = rule.points(func, target).values, case.parameters
    given = [] if wanted is None else [{n: _nearest(wanted.get(n, proposed[n]), c) for n, c in space.items()}]
    return [*given, proposed] if entry.case["kind_of_case"] == "unconfirmed" else given


def _nearest(value: int, choices: Iterable[int]) -> int:
    """The largest choice up to `value`, else the smallest."""
    choices = sorted(choices)
    return max((each for each in choices if each <= value), default=choices[0])


def described(entry: Entry, case: Any) -> dict[str, Any]:
    """Return the case with what its methods say, for the device's half, which has no class for it."""
    said: dict[str, Any] = {**asdict(case), "kind_of_case": entry.case["kind_of_case"]}
    if entry.suite.startswith("attention"):
        said |= {"shapes": case.shapes(), "result": case.result(), "numbers": case.numbers()}
    if entry.suite == "moves":
        said |= {"operands": moves_cases.operands(case), "result": moves_cases.result(case)}
    if entry.suite == "masked":
        said |= {"operands": masked_cases.operands(case)}
    if entry.suite == "plain":
        shape = [int(dim) for dim in plain_cases.prim_func(replace(case, open=())).params[-1].shape]
        said |= {"operands": plain_cases.operands(case), "result": shape}
    if entry.suite == "conv_bytes":
        case = case.of_floats
    if entry.suite.startswith("conv"):
        said |= {"size": case.size, "weight": case.weight}
    return said


def _about() -> dict[str, Any]:
    """What the bundle is of: the commit, and the compilers' versions."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return {"commit": done.stdout.strip(), "versions": {each: _version(each) for each in _PACKAGES}}


def _version(package: str) -> str:
    """Its version; '' where its files are there without what an installer writes."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _one_model(folder: Path, name: str, batch: int, target: str) -> None:
    """What a process of `_models` does."""
    from benchmarks.gpu.build_model import build_model

    stem = f"{name}_b{batch}"
    made = build_model(name, batch, folder, stem, target=target)
    (folder / f"{stem}.made").write_text(json.dumps(made))


if __name__ == "__main__":
    _one_model(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])

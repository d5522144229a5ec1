"""One case compiled, run and compared: what came of it, as a row of the journal."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.case import Array, Case, Env
from tests.fuzz.evaluate import Evaluator, Noise, NotEvaluated, Opinion, is_float

__all__ = ["BAD", "Expected", "check", "differences", "expected"]

BAD = ("wrong", "caught", "rejected", "unnamed", "crash", "hung")
"""The kinds of a finding: a wrong number, one that only the verification saw, a right artifact that it refused, an
error without a name, a process that died, or one that did not end. Beside them are `ok`, `refused` by name, and `weak`,
of which nothing could be compared."""

TARGET = "x86-64-v3"
"""What graphs are compiled for: most machines run it."""

_MOVES = 4
_UNITS = {"bf16": 2.0**-8, "fp16": 2.0**-11}
_MARGIN = 16.0
_LARGE = 1e4
_NAMED = ("unsupported-model", "model-malformed", "invalid-shape", "input-", "tool-missing")
"""Codes of errors that are a word on the model, or on the machine."""
_UNFIT = "computed from the inputs' values does not fit"
"""What a call is refused with where sizes that it computes broadcast, of which each is taken to be the other."""


@dataclass(frozen=True)
class Expected:
    """What a call's outputs are by the references: a value, how far it may be off, and where nothing is said."""

    values: Env
    bounds: Env
    unsaid: Env
    """True where a right program may give something else: NaN, and what a moved rounding changes altogether."""

    def compared(self) -> int:
        """Return how many elements are compared."""
        return sum(int((~each).sum()) for each in self.unsaid.values())

    def is_weak(self) -> bool:
        """Return whether what is compared is one number only."""
        for name, value in self.values.items():
            said = value[~self.unsaid[name]]
            if said.size and (said != said.flat[0]).any():
                return False
        return True


def expected(case: Case, env: Env, evaluator: Evaluator) -> Expected:
    """Return what a call gives. Raise NotEvaluated."""
    unit, level = _UNITS.get(case.options.get("precision", "")), case.options.get("opt_level", 2)
    values = evaluator.values(case, env)
    if unit is not None and any(_is_large(values[name]) for node in case.nodes for name in node.output if name):
        raise NotEvaluated("16 bits do not hold its values")
    moved = []
    for seed in range(_MOVES):
        try:
            noise = Noise(seed, unit, 4.0 if level < 3 else 32.0)
            moved.append(evaluator.values(case, env, noise=noise, like=values))
        except NotEvaluated:  # an index moved out of its range, say: then nothing is said of anything
            return Expected(*({name: each(values[name]) for name in case.outputs} for each in (_same, _zeros, _all)))
    said = {name: _said(values[name], [each[name] for each in moved], unit) for name in case.outputs}
    return Expected(
        {name: values[name] for name in case.outputs},
        {name: bound for name, (bound, _) in said.items()},
        {name: unsaid for name, (_, unsaid) in said.items()},
    )


def _is_large(array: Array) -> bool:
    if not is_float(array.dtype) or not array.size:
        return False
    return not bool((np.abs(array.astype(np.float64)) < _LARGE).all())


def _same(array: Array) -> Array:
    return array


def _zeros(array: Array) -> Array:
    return np.zeros(array.shape)


def _all(array: Array) -> Array:
    return np.ones(array.shape, bool)


def _said(value: Array, moved: Sequence[Array], unit: float | None) -> tuple[Array, Array]:
    """How far each element may be off, and of which nothing is said: by what moved roundings do to it."""
    if any(each.shape != value.shape for each in moved):
        return _zeros(value), _all(value)
    if not is_float(value.dtype):
        unsaid = np.zeros(value.shape, bool)
        for each in moved:
            unsaid |= each != value
        return _zeros(value), unsaid
    wide, info = value.astype(np.float64), ml_dtypes.finfo(value.dtype)
    unsaid, apart = np.isnan(wide), np.zeros(value.shape)
    with np.errstate(all="ignore"):
        for each in (array.astype(np.float64) for array in moved):
            unsaid |= (np.isfinite(each) != np.isfinite(wide)) | (np.isinf(wide) & (each != wide))
            apart = np.maximum(apart, np.where(np.isfinite(each) & np.isfinite(wide), np.abs(each - wide), 0))
        unit = max(unit or 0.0, float(info.eps))
        finite = np.abs(wide[np.isfinite(wide)])
        scale = np.abs(wide) + (np.median(finite) if finite.size else 0.0)
        tiny = 64 * float(info.tiny)  # so far a zero moves
        unsaid |= apart > min(max(0.01, 100 * unit), 0.5) * scale + tiny  # a step, or what is hardly a number any more
        typical = np.sqrt(np.mean(np.square(apart[~unsaid]))) if not unsaid.all() else 0.0
        bound = _MARGIN * apart + 4 * typical + 16 * unit * np.abs(wide) + 16 * float(info.tiny)
    return np.where(np.isfinite(bound), bound, np.inf), unsaid


def differences(got: Mapping[str, Array], want: Expected, other: Mapping[str, Array] | None = None) -> dict[str, str]:
    """Return what is wrong of each output that is. Where `other`, a second opinion, has what `got` has, it is right."""
    found = {}
    for name, value in want.values.items():
        if name not in got:
            found[name] = "is missing"
        elif got[name].dtype != value.dtype:
            found[name] = f"is {got[name].dtype} for {value.dtype}"
        elif got[name].shape != value.shape:
            if not want.unsaid[name].all():
                found[name] = f"has the shape {got[name].shape} for {value.shape}"
        else:
            bad = ~(_near(got[name], value, want.bounds[name]) | want.unsaid[name])
            if other is not None:
                bad &= ~(_near(got[name], other[name], want.bounds[name]) | _both_nan(got[name], other[name]))
            if bad.any():
                at = tuple(int(each) for each in np.argwhere(bad)[0])
                found[name] = f"{int(bad.sum())} of {bad.size} are wrong; {list(at)} is {got[name][at]} for {value[at]}"
    return found


def _near(got: Array, want: Array, bound: Array) -> Array:
    if not is_float(want.dtype):
        return np.asarray(got == want)
    one, other = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.isfinite(one) & np.isfinite(other) & (np.abs(one - other) <= bound)  # no bound reaches an infinity
    return np.asarray(near | (one == other))


def _both_nan(got: Array, want: Array) -> Array:
    if not is_float(want.dtype):
        return np.zeros(want.shape, bool)
    return np.asarray(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))


def check(case: Case) -> dict[str, Any]:
    """Return a row: its `kind`, and what it says."""
    evaluator = Evaluator(case.opset)
    try:
        wanted = [expected(case, env, evaluator) for env in case.envs]
    except NotEvaluated as error:
        return {"kind": "weak", "said": str(error)[:200]}
    if all(each.is_weak() for each in wanted):
        return {"kind": "weak", "said": "nothing to compare"}
    compared = {
        "compared": sum(each.compared() for each in wanted),
        "unsaid": sum(int(array.sum()) for each in wanted for array in each.unsaid.values()),
    }
    with tempfile.TemporaryDirectory(prefix="relaxc-fuzz-") as folder:
        row = _built_and_run(case, wanted, evaluator, Path(folder))
    return {**row, **compared}


def _built_and_run(case: Case, wanted: Sequence[Expected], evaluator: Evaluator, folder: Path) -> dict[str, Any]:
    import onnx

    from relaxc.service.errors import RelaxcError, VerificationFailed

    onnx.save(case.model(), folder / "model.onnx")
    verifies = case.options.get("verify", True)
    try:
        session = _session(case, folder / "model.onnx", folder)
    except VerificationFailed as error:
        row = _built_and_run(_unverified(case), wanted, evaluator, folder)
        kind = {"ok": "rejected", "wrong": "caught"}.get(row["kind"], row["kind"])
        return {**row, "kind": kind, "said": f"{str(error)[:300]} | {row.get('said', '')}"}
    except RelaxcError as error:
        return {"kind": _kind_of(error), "said": f"{error.code}: {str(error)[:400]}", "at": "compile"}
    except Exception as error:  # noqa: BLE001  # the finding is that it is no RelaxcError
        return {"kind": "unnamed", "said": f"{type(error).__name__}: {str(error)[:400]}", "at": "compile"}
    if session is None:
        return {"kind": "ok", "built": case.options["target"]}
    disputed = False
    for index, (env, want) in enumerate(zip(case.envs, wanted, strict=True)):
        try:
            got = session(env)
        except RelaxcError as error:
            kind = "refused" if case.symbols and error.code.startswith("input") else _kind_of(error)
            return {"kind": kind, "said": f"{error.code}: {str(error)[:400]}", "at": f"call {index}"}
        except Exception as error:  # noqa: BLE001  # likewise
            return {"kind": "unnamed", "said": f"{type(error).__name__}: {str(error)[:400]}", "at": f"call {index}"}
        wrong = differences(got, want)
        if wrong and (other := _second_opinion(case, env, evaluator)) is not None:
            wrong, disputed = differences(got, want, other), True
        if wrong:
            said = "; ".join(f"{name} {what}" for name, what in wrong.items())
            return {
                "kind": "wrong",
                "said": said[:500],
                "at": f"call {index}",
                "outputs": list(wrong),
                "verified": verifies,
            }
    return {"kind": "ok", "disputed": disputed}


def _session(case: Case, model: Path, folder: Path) -> Any:
    from relaxc.service.compiler import prepare, run
    from relaxc.service.request import CompileOptions
    from relaxc.service.runtime.loading import load

    options = {name: value for name, value in case.options.items() if name != "target"}
    request = prepare(model, target=case.options.get("target", TARGET), options=CompileOptions.from_dict(options))
    run(request, folder, lambda event: None)
    return None if request.target.kind == "cuda" else load(folder / "model.so", threads=1)


def _unverified(case: Case) -> Case:
    return Case(**{**vars(case), "options": {**case.options, "verify": False}})


def _kind_of(error: Any) -> str:
    """An error is unnamed where it is the compiler's own failure and no word on the model."""
    return "refused" if error.code.startswith(_NAMED) or _UNFIT in str(error) else "unnamed"


def _second_opinion(case: Case, env: Env, evaluator: Evaluator) -> Env | None:
    """What ONNX's own evaluator has; None where it cannot say."""
    try:
        return evaluator.values(case, env, opinion=Opinion.NUMPY, like=evaluator.values(case, env))
    except NotEvaluated:
        return None

"""What of a case is not the same on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["changes"]

Kernel = Mapping[str, str]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what changed, each with the name of its kernel, or with that of a part of the whole.

    A kernel that has another name and is otherwise one that was there is no change.
    """
    if "kernels" not in before or "kernels" not in after:
        failed = [_failure(each) for each in (before, after)]
        if failed[0] != failed[1]:
            yield "compile", f"{failed[0] or 'built'} → {failed[1] or 'built'}"
        return
    for part in ("graph", "weights"):
        if before[part] != after[part]:
            yield part, "differs"
    yield from _kernels(before["kernels"], after["kernels"])


def _failure(found: Mapping[str, Any]) -> str:
    return str(found.get("refused") or (found.get("died") and f"died {found['died']}") or "")


def _kernels(before: Mapping[str, Kernel], after: Mapping[str, Kernel]) -> Iterator[tuple[str, str]]:
    was = {name: kernel for name, kernel in before.items() if name not in after}
    for name, kernel in after.items():
        if name in before:
            parts = [part for part in {**before[name], **kernel} if before[name].get(part) != kernel.get(part)]
            if parts:
                yield name, _said(parts, before[name], kernel)
        elif (same := next((other for other, known in was.items() if known == kernel), None)) is not None:
            del was[same]
        else:
            yield name, "is new"
    for name in was:
        yield name, "is gone"


def _said(parts: list[str], before: Kernel, after: Kernel) -> str:
    """Which digests differ; of a plan and a key what they say."""
    words = [f"{part}: {before.get(part)} → {after.get(part)}" for part in parts if part in ("key", "plan")]
    digests = [part for part in parts if part not in ("key", "plan")]
    unraised = {"code", "cuda"} & set(parts) and before.get("plan") == after.get("plan")
    note = f"; the version of {before['plan'].split()[0]} is the same" if unraised and "plan" in before else ""
    return ", ".join([*digests, *words]) + note

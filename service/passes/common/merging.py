"""Several calls of one tensor become one, and a slice of its result stands where each result was."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from tvm import IRModule, relax
from tvm.relax.expr_functor import PyExprMutator

from relaxc.service.passes.common.origins import emit_as
from relaxc.service.passes.common.readers import Readers
from relaxc.service.passes.common.rewrite import op_name

__all__ = ["Member", "Merging", "is_free"]


class Member(Protocol):
    """One of the calls: `result` has `columns` along its last axis."""

    @property
    def result(self) -> relax.Var:
        """The variable that a slice replaces."""
        ...

    @property
    def columns(self) -> int:
        """How many columns of the merged result are its own."""
        ...


M = TypeVar("M", bound=Member)


def is_free(result: relax.Var, readers: Readers, movements: Sequence[str]) -> bool:
    """Return whether a slice in its place costs nothing: every reader, `movements` aside, is a transpose."""
    pending, found = [result], False
    while pending:
        for reader in readers.of(pending.pop()):
            name = "" if reader is None else op_name(reader.value)
            if reader is not None and name in movements:
                pending.append(reader.var)
            elif name != "relax.permute_dims":
                return False
            found = found or name == "relax.permute_dims"
    return found


class Merging(PyExprMutator, ABC, Generic[M]):  # type: ignore[misc]  # tvm ships no types
    """Puts slices in the places of the results of each group; its first result is where all are computed.

    A subclass, decorated as a mutator, says how.
    """

    def __init__(self, module: IRModule, groups: list[list[M]]) -> None:
        super().__init__(module)
        self.members = {member.result: (group, at) for group in groups for at, member in enumerate(group)}
        self.merged: dict[Any, relax.Var] = {}

    @abstractmethod
    def computed(self, group: list[M]) -> relax.Var:
        """Return the results of a group beside each other along the last axis."""

    def visit_var_binding_(self, binding: Any) -> None:
        """Put the slice in the place of a result, in its dtype; the first of a group computes all of them."""
        if binding.var not in self.members:
            super().visit_var_binding_(binding)
            return
        group, at = self.members[binding.var]
        first = group[0].result
        if first not in self.merged:
            self.merged[first] = self.computed(group)
        whole = self.merged[first]
        begin = sum(member.columns for member in group[:at])
        part = relax.op.strided_slice(
            whole, [whole.ty.ndim - 1], [begin], [begin + group[at].columns], [1], assume_inbound=True
        )
        found = emit_as(self.builder_, part, binding.var)
        if str(found.ty.dtype) != str(binding.var.ty.dtype):
            found = emit_as(self.builder_, relax.op.astype(found, str(binding.var.ty.dtype)), binding.var)
        self.set_var_remap(binding.var, found)

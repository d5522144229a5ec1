"""torch as the reference of an exported program: its graph, node by node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

from relaxc.service.errors import InputName, ModelMalformed, UnsupportedModel
from relaxc.service.frontend.pt2.program import Document, Program
from relaxc.service.frontend.pt2.quantizations import Quantizations, concerns
from relaxc.service.frontend.pt2.state import mutable_buffers
from relaxc.service.frontend.pt2.torch_calls import quiet
from relaxc.service.rounding import Rounding

__all__ = ["TorchReference", "to_numpy"]


class Values(Protocol):
    """What changes the values of a run."""

    def given(self, value: Any) -> Any:
        """Return a weight or an input as the run is to have it."""
        ...

    def before(
        self, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what an operator is to read."""
        ...

    def behind(self, target: str, value: Any) -> Any:
        """Return what is to be taken for what an operator gave."""
        ...


class TorchReference:
    """Interprets the exported graph; torch's generated code for the module is not used.

    A program's state goes from run to run.
    `quantizations` gives what is done instead of them in a run; `rounding` is what was done to weights; `values`
    changes what a run computes.
    """

    def __init__(
        self,
        document: Document,
        program: Program,
        threads: int,
        quantizations: Callable[[], Quantizations] | None = None,
        rounding: Rounding | None = None,
        values: Values | None = None,
    ) -> None:
        self.quantizations = quantizations
        self.values = values
        self.stored, self.unrounded = _rounded(program, rounding)
        self.interface = document.interface
        self.program = program
        self.threads = threads
        self.first = {name: self.stored[name] for name in mutable_buffers(program.exported)}
        self.reset()

    def reset(self) -> None:
        """Have the program's state as it was exported; each run goes on from what the last has left."""
        for name, value in self.first.items():
            value = value.detach().clone()
            self.stored[name] = self.values.given(value) if self.values is not None else value

    def __call__(self, inputs: Mapping[str, Any], /) -> dict[str, Any]:
        """Outputs by name from inputs by name, all numpy. Raise InputName."""
        import torch

        wanted = [leaf.name for leaf in self.interface.inputs if leaf.dtype is not None]
        if set(inputs) != set(wanted):
            raise InputName(f"the program takes {', '.join(wanted)}; given were {', '.join(inputs) or 'none'}")
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with torch.no_grad(), quiet():
                results = self._run(inputs)
        except (RuntimeError, IndexError) as error:
            first = str(error).partition("\n")[0][:300]
            remedy = "--no-verify compiles it without a comparison."
            raise ModelMalformed(f"torch stops in the program: {first}", remedy=remedy) from error
        finally:
            torch.set_num_threads(before)
        leaves = zip(self.interface.outputs, results, strict=True)
        return {leaf.name: to_numpy(value, leaf.dtype) for leaf, value in leaves if leaf.dtype is not None}

    def _run(self, inputs: Mapping[str, Any]) -> list[Any]:
        exported = self.program.exported
        leaves = iter(self.interface.inputs)
        arguments = []
        for spec in exported.graph_signature.input_specs:
            if spec.kind.name == "USER_INPUT":
                leaf = next(leaves)
                arguments.append(leaf.value if leaf.dtype is None else _tensor(inputs[leaf.name]))
            elif spec.target in self.stored:
                arguments.append(self.stored[spec.target])
            else:
                raise UnsupportedModel(f"the program takes {spec.arg.name} as {spec.kind.name.lower()}")
        values = _interpreter(
            exported.graph_module,
            self.quantizations() if self.quantizations else None,
            self.unrounded,
            self.values,
            {spec.arg.name for spec in exported.graph_signature.input_specs if spec.target in self.first},
        ).run(*arguments)
        specs = exported.graph_signature.output_specs
        flat = list(values) if isinstance(values, list | tuple) else [values]
        for value, spec in zip(flat, specs, strict=True):
            if spec.kind.name == "BUFFER_MUTATION":
                self.stored[spec.target] = value.detach().clone()
        return [v for v, spec in zip(flat, specs, strict=True) if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")]


def _rounded(program: Program, rounding: Rounding | None) -> tuple[dict[str, Any], dict[int, Any]]:
    """What the program holds, by name, and by the id of a tensor that was rounded the tensor that it was."""
    import torch

    stored = {**program.exported.constants, **program.exported.state_dict}
    before = {}
    for name, value in stored.items() if rounding is not None else ():
        array = rounding.apply(to_numpy(value, None)) if isinstance(value, torch.Tensor) else None  # type: ignore[union-attr]
        if array is not None:
            stored[name] = torch.from_numpy(array)
            before[id(stored[name])] = value
    return stored, before


def _interpreter(
    graph_module: Any,
    quantizations: Quantizations | None,
    unrounded: Mapping[int, Any],
    values: Values | None,
    state: Collection[str] = (),
) -> Any:
    """torch's interpreter, but for lookups in weights that were rounded for products, and for 16-bit convolutions in
    groups, which go through float32.

    oneDNN in torch 2.13 computes them wrongly on CPUs with AMX: conv1d of 32 channels in 4 groups with a kernel of 8
    is off by as much as its largest value, in bfloat16 and in float16.
    """
    import torch

    class Interpreter(torch.fx.Interpreter):  # type: ignore[misc]  # mypy does not follow torch
        def run_node(self, node: Any) -> Any:
            self.given = bool(node.args) and getattr(node.args[0], "op", "") == "placeholder"
            found = super().run_node(node)
            taken = node.op == "placeholder" and node.name not in state  # the program has to write into that itself
            return values.given(found) if values is not None and taken else found

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if values is not None:
                args, kwargs = values.before(str(target), args, kwargs)
            found = self.called(target, args, kwargs)
            return values.behind(str(target), found) if values is not None else found

        def called(self, target: Any, args: Any, kwargs: Any) -> Any:
            if unrounded and "embedding" in str(target):
                args = tuple(unrounded.get(id(arg), arg) for arg in args)
            if quantizations is not None and concerns(str(target), (*args[1:], *kwargs.values())):
                call = partial(super().call_function, target, kwargs=kwargs)
                return quantizations(str(target), args, call, given=self.given)
            is_half = args and isinstance(args[0], torch.Tensor) and args[0].dtype in (torch.float16, torch.bfloat16)
            if is_half and "conv" in str(target) and any(isinstance(arg, int) and arg > 1 for arg in args):
                wide = [arg.float() if isinstance(arg, torch.Tensor) else arg for arg in args]
                return super().call_function(target, tuple(wide), kwargs).to(args[0].dtype)
            return super().call_function(target, args, kwargs)

    return Interpreter(graph_module)


def _tensor(array: Any) -> Any:
    """A numpy array, bfloat16 by ml_dtypes included, as a tensor with memory of its own."""
    import numpy as np
    import torch

    array = np.array(
        array, order="C"
    )  # a copy: the program may write to it; ascontiguousarray would add a dim to a scalar
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(value: Any, dtype: str | None) -> Any:
    """Return a tensor, or a number of a dtype, as an array of its own, as a state's tensor changes later; one that is
    wider than the `dtype` is rounded to it.
    """
    import ml_dtypes
    import numpy as np
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=getattr(torch, str(dtype)))
    tensor = tensor.detach().contiguous()
    if dtype == "float32" and tensor.dtype == torch.float64:
        tensor = tensor.float()
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.view(torch.uint16).numpy()).view(ml_dtypes.bfloat16)
    if tensor.dtype == torch.float8_e4m3fn:
        return np.array(tensor.view(torch.uint8).numpy()).view(ml_dtypes.float8_e4m3fn)
    return np.array(tensor.numpy(), order="C")

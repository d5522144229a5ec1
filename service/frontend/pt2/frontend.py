"""The frontend of torch.export archives (`.pt2`): a Relax module, a description, and torch itself as reference.

Reading runs nothing that the file carries: see pt2_archive, pt2_check and pt2_weights. Then torch decomposes the
program (`graph`), and each node goes through its converter (`importer`, `ops`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from service.errors import InputName, ModelMalformed, UnsupportedModel
from service.frontend.model import ImportedModel, ModelInfo, Move, Reference, Shapes, Unsupported
from service.frontend.pt2.graph import decompose, refuse, unsupported_nodes
from service.frontend.pt2.moved_values import MovedValues
from service.frontend.pt2.program import Document, Program, deserialize, parse
from service.frontend.pt2.quantizations import (
    QUANTIZE,
    Moved,
    Quantizations,
    Unrounded,
    concerns,
    quantized_ranges,
    quantizes,
)
from service.frontend.pt2.signature import signature
from service.frontend.pt2.torch_calls import quiet
from service.request import ModelFormat
from service.rounding import Rounding

__all__ = [
    "input_ranges",
    "inspect",
    "load",
    "moved_reference",
    "plain_reference",
    "reference",
    "tensors",
    "unquantized_reference",
]


def load(path: Path, *, shapes: Shapes) -> ImportedModel:
    """Return the program as Relax, symbolic dims bound or renamed by `shapes`.

    Raise a ModelError, InvalidShape for `shapes` that do not fit, or CompileFailed for a fault of ours or torch's.
    """
    document = parse(path)
    found, symbols = signature(document.interface, shapes)  # first: it is cheap, and refuses most wrong shapes
    program, unsupported = _decomposed(document)
    refuse(unsupported)
    from service.frontend.pt2.importer import to_relax

    module = to_relax(program, document.interface, symbols)
    return ImportedModel(module, found, document.op_counts)


def inspect(path: Path) -> ModelInfo:
    """Return the signature, the operators and which of them are not supported. Raise a ModelError."""
    document = parse(path)
    found, _ = signature(document.interface, {})
    _, unsupported = _decomposed(document)
    return ModelInfo(ModelFormat.PT2, found, document.op_counts, unsupported, document.details)


def _decomposed(document: Document) -> tuple[Any, dict[str, Unsupported]]:
    """The program decomposed, None if torch cannot trace it, and the operators that no converter takes."""
    if document.unknown and not document.traceable:
        return None, document.unknown
    program = decompose(deserialize(document).exported)
    return program, unsupported_nodes(program)


def tensors(path: Path) -> Iterator[Any]:
    """Return the arrays of the program's parameters, buffers and constants."""
    import torch

    exported = deserialize(parse(path)).exported
    held = (value for part in (exported.state_dict, exported.constants) for value in part.values())
    return (_numpy(value, None) for value in held if isinstance(value, torch.Tensor))


def reference(
    path: Path, *, threads: int, shapes: Shapes, fastest: bool = False, rounding: Rounding | None = None
) -> Reference:
    """Return the program as it was exported, run by torch in its own dtypes with `threads` threads; torch has no faster
    way that does not compile, so `fastest` changes nothing. With `rounding` all but lookups read rounded weights.
    """
    del fastest
    document = parse(path, writable=True)
    refuse(document.unknown)
    signature(document.interface, shapes)
    return _TorchReference(document, deserialize(document), threads, rounding=rounding)


def moved_reference(
    path: Path, move: Move, *, threads: int, shapes: Shapes, seed: int, by: float, rounding: Rounding | None = None
) -> Reference | None:
    """Return `reference` with `move` of the program moved, None for a program that has none."""
    document = parse(path, writable=True)
    refuse(document.unknown)
    signature(document.interface, shapes)
    program = deserialize(document)
    if move is Move.QUANTIZATIONS:
        nodes = program.exported.graph.nodes
        if not any(quantizes(str(node.target), (*node.args[1:], *node.kwargs.values())) for node in nodes):
            return None
        moved = Moved(seed, by)
        return _TorchReference(document, program, threads, quantizations=lambda: moved)
    if move is Move.VALUES:
        return _TorchReference(document, program, threads, rounding=rounding, values=MovedValues(seed, by))
    _move_weights(program, seed, by)
    return _TorchReference(document, program, threads)


def plain_reference(path: Path, *, threads: int, shapes: Shapes, rounding: Rounding | None = None) -> None:
    """Return None: torch runs the program as it was exported, and rewrites nothing."""


def _move_weights(program: Program, seed: int, by: float) -> None:
    """Have other weights in the program; a number alone is no weight."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    for held in (program.exported.constants, program.exported.state_dict):
        for name, value in held.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 1:
                factor = 1 + by * (2 * torch.rand(value.shape, generator=draw) - 1)
                held[name] = (value.detach() * factor).to(value.dtype)


def unquantized_reference(path: Path, *, threads: int, shapes: Shapes) -> Reference | None:
    """Return `reference` without the rounding of activations, None for a program that has none."""
    document = parse(path, writable=True)
    if not any(name.startswith(QUANTIZE) for name in document.op_counts):
        return None
    refuse(document.unknown)
    signature(document.interface, shapes)
    return _TorchReference(document, deserialize(document), threads, quantizations=Unrounded)


def input_ranges(path: Path) -> dict[str, tuple[float, float]]:
    """Return input → the range that a quantized program was made for: that of what quantizes it by one scale."""
    document = parse(path)
    if not any(name.startswith(QUANTIZE) for name in document.op_counts):
        return {}
    refuse(document.unknown)
    return quantized_ranges(deserialize(document).exported)


class _TorchReference:
    """Interprets the exported graph; torch's generated code for the module is not used.

    `quantizations` gives what is done instead of them in a run; `rounding` is what was done to weights; `values` moves
    what a run computes.
    """

    def __init__(
        self,
        document: Document,
        program: Program,
        threads: int,
        quantizations: Callable[[], Quantizations] | None = None,
        rounding: Rounding | None = None,
        values: MovedValues | None = None,
    ) -> None:
        self.quantizations = quantizations
        self.values = values
        self.stored, self.unrounded = _rounded(program, rounding)
        self.interface = document.interface
        self.program = program
        self.threads = threads

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
        return {leaf.name: _numpy(value, leaf.dtype) for leaf, value in leaves if leaf.dtype is not None}

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
            exported.graph_module, self.quantizations() if self.quantizations else None, self.unrounded, self.values
        ).run(*arguments)
        specs = exported.graph_signature.output_specs
        flat = list(values) if isinstance(values, list | tuple) else [values]
        return [v for v, spec in zip(flat, specs, strict=True) if spec.kind.name in ("USER_OUTPUT", "LOSS_OUTPUT")]


def _rounded(program: Program, rounding: Rounding | None) -> tuple[dict[str, Any], dict[int, Any]]:
    """What the program holds, by name, and by the id of a tensor that was rounded the tensor that it was."""
    import torch

    stored = {**program.exported.constants, **program.exported.state_dict}
    before = {}
    for name, value in stored.items() if rounding is not None else ():
        array = rounding.apply(_numpy(value, None)) if isinstance(value, torch.Tensor) else None  # type: ignore[union-attr]
        if array is not None:
            stored[name] = torch.from_numpy(array)
            before[id(stored[name])] = value
    return stored, before


def _interpreter(
    graph_module: Any, quantizations: Quantizations | None, unrounded: Mapping[int, Any], values: MovedValues | None
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
            return values.given(found) if values is not None and node.op == "placeholder" else found

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if values is not None:
                args = values.before(str(target), args)
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


def _numpy(value: Any, dtype: str | None) -> Any:
    import ml_dtypes
    import numpy as np
    import torch

    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=getattr(torch, str(dtype)))
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return np.array(tensor.numpy(), order="C")

"""Outputs that the next call has as inputs become state: a decoder's past and present, an LSTM's `h` and `hn`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relaxc.service.errors import InvalidOption
from relaxc.service.frontend.model import ImportedModel
from relaxc.service.signature import STATE, Signature, TensorSpec

__all__ = ["found_by_name", "with_state"]

_PAST = re.compile(r"past(_key_values?)?")
_PRESENT = re.compile(r"present(_key_values?)?")


def found_by_name(signature: Signature) -> dict[str, str]:
    """Return input → output for pairs such as `past_key_values.0.key` and `present.0.key`, of one dtype and known size.

    A present that is longer than its past is none: a state keeps its size. None is found where no output would be left.
    """
    outputs = {_PRESENT.sub("*", spec.name, count=1): spec for spec in signature.outputs if _PRESENT.search(spec.name)}
    pairs = [(spec, outputs.get(_PAST.sub("*", spec.name, count=1))) for spec in signature.inputs]
    found = {
        past.name: present.name
        for past, present in pairs
        if present is not None and _PAST.search(past.name) and _fit(past, present)
    }
    return found if len(found) < len(signature.outputs) else {}


def _fit(past: TensorSpec, present: TensorSpec) -> bool:
    known = all(isinstance(dim, int) for dim in past.shape)
    return known and (past.dtype, past.codes, past.shape) == (present.dtype, present.codes, present.shape)


def with_state(model: ImportedModel, asked: Mapping[str, str] | None) -> ImportedModel:
    """Return the model with these pairs of input and output as its state, 0 at first; None finds them by name.

    States are in the order of their outputs. Raise InvalidOption for names that are not there, and pairs that differ.
    """
    if model.signature.state and not asked:
        return model
    pairs = found_by_name(model.signature) if asked is None else dict(asked)
    if not pairs:
        return model
    _check(model.signature, pairs)
    inputs = {spec.name: place for place, spec in enumerate(model.signature.inputs)}
    outputs = {spec.name: place for place, spec in enumerate(model.signature.outputs)}
    order = sorted(pairs.items(), key=lambda pair: outputs[pair[1]])
    taken, given = [inputs[name] for name, _ in order], [outputs[name] for _, name in order]
    found = replace(
        model.signature,
        inputs=tuple(spec for place, spec in enumerate(model.signature.inputs) if place not in taken),
        outputs=tuple(spec for place, spec in enumerate(model.signature.outputs) if place not in given),
        state=tuple(model.signature.inputs[place] for place in taken),
    )
    return replace(model, module=_moved(model.module, taken, given), signature=found)


def _check(signature: Signature, pairs: Mapping[str, str]) -> None:
    if signature.state:
        raise InvalidOption("the program keeps buffers already, beside which no outputs become state", option="state")
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name: spec for spec in signature.outputs}
    for past, present in pairs.items():
        for name, specs, kind in ((past, inputs, "input"), (present, outputs, "output")):
            if name not in specs:
                raise InvalidOption(f"there is no {kind} {name!r}; there are {', '.join(specs)}", option="state")
        if not _fit(inputs[past], outputs[present]):
            raise InvalidOption(
                f"the state {inputs[past]} cannot become {outputs[present]}: it keeps its dtype, and known sizes",
                option="state",
                remedy="Give the input sizes by `--shape`; a cache that grows stays an input and an output.",
            )
    if len(set(pairs.values())) < len(pairs) or len(pairs) == len(outputs):
        raise InvalidOption("each state has an output of its own, and one output at least is left", option="state")


def _moved(module: Any, taken: Sequence[int], given: Sequence[int]) -> Any:
    """The module with the state behind the other parameters, its next values behind the other results, and held."""
    from tvm import relax

    from relaxc.service.frontend.held_writes import held

    gvar = module.get_global_var("main")
    main = module["main"]
    states = [main.params[place] for place in taken]
    main, excess = held(module, main, states)
    result = main.body.body
    fields = next(
        list(binding.value.fields)
        for block in main.body.blocks
        for binding in block.bindings
        if binding.var == result or result.same_as(binding.var)
    )
    kept = [field for place, field in enumerate(fields) if place not in given]
    every = relax.Tuple([*kept, *([] if excess is None else [excess]), *(fields[place] for place in given)])
    made = relax.Var("results", relax.TupleType([field.ty for field in every.fields]))

    def block(old: Any) -> Any:
        bindings = [relax.VarBinding(made, every) if each.var == result else each for each in old.bindings]
        return relax.DataflowBlock(bindings) if isinstance(old, relax.DataflowBlock) else relax.BindingBlock(bindings)

    params = [param for place, param in enumerate(main.params) if place not in taken]
    params += [main.params[place] for place in taken]
    body = relax.SeqExpr([block(each) for each in main.body.blocks], made)
    function = relax.Function(params, body, made.ty, main.is_pure, main.attrs).with_attr(STATE, len(taken))
    module = module.clone()
    module.update_func(gvar, function)
    return relax.transform.Normalize()(module)

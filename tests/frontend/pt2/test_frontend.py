"""Every family of the zoo as a `.pt2`: names, dtypes, symbolic sizes and numbers are torch's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from relaxc.service.errors import InputName, InvalidShape, UnsupportedModel
from relaxc.service.frontend.pt2 import frontend as exported_program
from relaxc.service.signature import DimBounds, TensorSpec
from tests import zoo
from tests.frontend.pt2.support import arrays_of, check, export
from tests.waiting import PATIENCE_S


def _inputs(name: str, dtype: str = "float32") -> list[object]:
    model = zoo.build(name, dtype=dtype)
    return arrays_of(*model.args, **model.kwargs)


@pytest.mark.sampled("bert")
@pytest.mark.parametrize("name", zoo.names())
def test_family(name: str) -> None:
    check(zoo.export(name, "pt2"), _inputs(name))


@pytest.mark.sampled("cnn-float16")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("cnn", "float16"), ("llama", "float16"), ("gru", "float16"), ("bert", "bfloat16"), ("cnn", "bfloat16")],
)
def test_half_precision(name: str, dtype: str) -> None:
    check(zoo.export(name, "pt2", dtype=dtype), _inputs(name, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_symbolic_batch_and_sequence(name: str) -> None:
    sizes = [(1, 2), (3, 7), (5, 33)]
    cases = [
        arrays_of(torch.randint(5, 90, size), (torch.arange(size[1]) < max(size[1] - 1, 2)).long().expand(size))
        for size in sizes
    ]
    model = check(zoo.export(name, "pt2", dynamic=True), *cases)
    assert model.signature.inputs[0] == TensorSpec("input_ids", "int64", ("s0", "s1"))
    assert model.signature.bounds == {"s0": DimBounds(1, 16), "s1": DimBounds(2, 64)}


@pytest.mark.slow
def test_symbolic_batch_of_images() -> None:
    cases = [arrays_of(torch.randn(n, 3, 64, 64)) for n in (1, 2, 5)]
    check(zoo.export("resnet18", "pt2", dynamic=True), *cases)


@pytest.mark.slow
def test_outputs_keep_their_names() -> None:
    model = exported_program.inspect(zoo.export("bert", "pt2"))
    assert [spec.name for spec in model.signature.outputs] == ["last_hidden_state", "pooler_output"]
    model = exported_program.inspect(zoo.export("lstm", "pt2"))
    assert [spec.name for spec in model.signature.outputs] == ["output.0", "output.1"]
    model = exported_program.inspect(zoo.export("mlp", "pt2"))
    assert [spec.name for spec in model.signature.outputs] == ["output"]


def test_inputs_that_are_not_tensors_are_constants() -> None:
    info = exported_program.inspect(zoo.export("gpt2", "pt2"))
    assert info.signature.constants == (("use_cache", False),)
    assert [spec.name for spec in info.signature.inputs] == ["input_ids", "attention_mask"]


@pytest.mark.slow
def test_module_follows_the_convention() -> None:
    from tvm import relax

    model = exported_program.load(zoo.export("bert", "pt2", dynamic=True), shapes={})
    main = model.module["main"]
    assert [param.name for param in main.params] == ["input_ids", "attention_mask"]
    assert isinstance(main.ret_ty, relax.TupleType) and len(main.ret_ty.fields) == 2
    assert {str(dim) for dim in main.params[0].ty.shape.values} == {"s0", "s1"}
    relax.analysis.well_formed(model.module)  # raises where it is not


@pytest.mark.slow
def test_transformers_is_not_needed(tmp_path: Path) -> None:
    """A file of a transformers model loads where its classes cannot even be imported."""
    path = zoo.export("bert", "pt2")
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "from pathlib import Path\n"
        "from relaxc.service.frontend.pt2 import frontend as exported_program\n"
        f"model = exported_program.load(Path({str(path)!r}), shapes={{}})\n"
        "print(*[spec.name for spec in model.signature.outputs])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.stdout.split() == ["last_hidden_state", "pooler_output"], ran.stderr


@pytest.mark.slow
def test_cache_as_output(tmp_path: Path) -> None:
    """A DynamicCache in a ModelOutput gets dotted names."""
    from transformers.integrations import executorch

    executorch.register_dynamic_cache_export_support()
    model = zoo.build("llama")
    path = export(tmp_path / "m.pt2", model.module, **model.kwargs, use_cache=True)
    found = check(path, arrays_of(**model.kwargs))
    names = [spec.name for spec in found.signature.outputs]
    assert names[0] == "logits" and len(names) == 5
    assert all(name.startswith("past_key_values.") for name in names[1:])


@pytest.mark.slow
def test_shapes_bind_and_rename() -> None:
    path = zoo.export("bert", "pt2", dynamic=True)
    model = exported_program.load(path, shapes={"input_ids": ("batch", 12)})
    assert model.signature.inputs[1] == TensorSpec("attention_mask", "int64", ("batch", 12))
    assert model.signature.outputs[0].shape == ("batch", 12, 32)
    assert dict(model.signature.dims) == {"batch": DimBounds(1, 16)}
    check(path, _inputs("bert"), shapes={"input_ids": (2, 12), "attention_mask": (2, 12)})


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({"ids": (1, 2)}, "no tensor input 'ids'"),
        ({"input_ids": (1,)}, "has 2 dims"),
        ({"input_ids": (17, 12)}, "outside its bounds"),
        ({"input_ids": (2, 1)}, "outside its bounds"),
        ({"input_ids": (2, 12), "attention_mask": (3, 12)}, "cannot be 3"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], what: str) -> None:
    with pytest.raises(InvalidShape, match=what):
        exported_program.load(zoo.export("bert", "pt2", dynamic=True), shapes=shapes)


def test_a_fixed_size_cannot_change() -> None:
    with pytest.raises(InvalidShape, match="cannot be 8"):
        exported_program.load(zoo.export("mlp", "pt2"), shapes={"input": (8, 16)})


def test_every_unsupported_operator_is_named(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(x).abs() + torch.rand(4) + torch.cdist(x, x) + torch.rand(4)

    path = export(tmp_path / "m.pt2", Model(), torch.randn(4, 4))
    info = exported_program.inspect(path)
    assert set(info.unsupported) >= {"aten.rand.default", "aten._fft_r2c.default"}
    assert info.unsupported["aten.rand.default"].count == 2
    with pytest.raises(UnsupportedModel, match=r"aten\.rand\.default \(2\)") as raised:
        exported_program.load(path, shapes={})
    assert raised.value.fields["ops"]["aten.rand.default"]["nodes"] == ["rand", "rand_1"]


def test_reference_names_its_inputs() -> None:
    run = exported_program.reference(zoo.export("mlp", "pt2"), threads=1, shapes={})
    with pytest.raises(InputName):
        run({"x": None})


def test_reference_keeps_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    run = exported_program.reference(zoo.export("mlp", "pt2"), threads=1, shapes={})
    run({"input": _inputs("mlp")[0]})
    assert torch.get_num_threads() == before


def test_inspect_describes_the_file() -> None:
    info = exported_program.inspect(zoo.export("cnn", "pt2"))
    assert info.op_counts["aten.conv2d.default"] == 1
    assert info.details["torch_version"] == torch.__version__
    assert not info.unsupported


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_reference_of_a_grouped_convolution_in_16_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    """oneDNN in torch 2.13 computes it wrongly on CPUs with AMX; the reference is right on every CPU."""
    torch.manual_seed(0)
    module = torch.nn.Conv1d(32, 32, 8, groups=4).to(dtype).eval()
    data = torch.randn(1, 32, 40).to(dtype)
    path = export(tmp_path / "m.pt2", module, data)
    reference = exported_program.reference(path, threads=1, shapes={})
    (got,) = reference(dict(zip(("input",), arrays_of(data), strict=True))).values()
    want = module.float()(data.float()).detach().numpy()
    np.testing.assert_allclose(got.astype("float32"), want, rtol=2e-2, atol=2e-2)

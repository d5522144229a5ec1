"""Random inputs: the same for equal seeds, within bounds, and valid for what they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from relaxc.service.errors import InputName, InputShape
from relaxc.service.runtime.dims import bind
from relaxc.service.runtime.inputs import Draw, drawn, other_operands, random_inputs
from relaxc.service.runtime.sizes import choose_sizes
from relaxc.service.signature import DimBounds, Signature, TensorSpec

SIGNATURE = Signature(
    (
        TensorSpec("ids", "int64", ("batch", "seq")),
        TensorSpec("attention_mask", "int64", ("batch", "seq")),
        TensorSpec("key_mask", "bool", ("batch", 1, "2*seq + 1")),
        TensorSpec("x", "bfloat16", ("batch", 8)),
        TensorSpec("flags", "bool", (64,)),
        TensorSpec("step", "int32", ()),
        TensorSpec("scale", "float16", ()),
    ),
    (),
    (("batch", DimBounds(1, 4)), ("seq", DimBounds(5, 512))),
)


def test_equal_seeds_give_equal_inputs_and_others_do_not() -> None:
    one, two, other = (random_inputs(SIGNATURE, seed=seed) for seed in (1, 1, 2))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name])
    assert (one["x"] != other["x"]).any()


def test_they_fit_the_signature_at_every_chosen_size() -> None:
    choices = choose_sizes(SIGNATURE)
    assert len(choices) == 3
    for sizes in choices:
        given = random_inputs(SIGNATURE, sizes=sizes)
        assert [str(array.dtype) for array in given.values()] == [spec.dtype for spec in SIGNATURE.inputs]
        assert bind(SIGNATURE, [array.shape for array in given.values()]) == sizes


def test_sizes_keep_to_their_bounds_and_differ_between_dims() -> None:
    for sizes in choose_sizes(SIGNATURE, 9):
        assert all(size in SIGNATURE.bounds[name] for name, size in sizes.items())
    fixed = Signature((), (), (("n", DimBounds(3, 3)),))
    assert choose_sizes(fixed) == [{"n": 3}]
    assert choose_sizes(Signature((), ())) == [{}]
    assert len(set(choose_sizes(Signature((), (), (("a", DimBounds()), ("b", DimBounds()))))[0].values())) == 2


def test_values_are_valid_for_what_they_are() -> None:
    given = random_inputs(SIGNATURE, seed=3, sizes={"batch": 4, "seq": 50})
    assert set(np.unique(given["ids"])) == {0, 1}
    assert set(np.unique(random_inputs(SIGNATURE, sizes={"seq": 50}, int_high=9)["ids"])) <= set(range(9))
    for name in ("attention_mask", "key_mask"):
        mask = given[name].astype(int)
        assert mask[..., 0].all()
        assert (np.diff(mask, axis=-1) <= 0).all()
    assert given["x"].dtype == ml_dtypes.bfloat16
    assert given["scale"].shape == given["step"].shape == ()
    one_sign = random_inputs(SIGNATURE, one_sign=True)
    assert all(isinstance(value, np.ndarray) for value in (*given.values(), *one_sign.values()))
    assert 0 < given["flags"].sum() < 64


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputName, match="'time'"):
        random_inputs(SIGNATURE, sizes={"time": 1})
    with pytest.raises(InputShape, match="outside its bounds"):
        random_inputs(SIGNATURE, sizes={"seq": 4})
    huge = Signature((TensorSpec("x", "float32", ("n", "n")),), (), (("n", DimBounds(1 << 40, None)),))
    with pytest.raises(InputShape, match="would be"):
        random_inputs(huge)
    unknown = Signature((TensorSpec("x", "float32", ("m",)),), ())
    with pytest.raises(InputShape, match="cannot be computed"):
        random_inputs(unknown)


def test_a_draw_reaches_beyond_the_ends_of_a_range() -> None:
    signature = Signature(
        (TensorSpec("x", "float32", (64, 64)), TensorSpec("c", "uint8", (64, 64)), TensorSpec("h", "float16", (64,))),
        (),
    )
    ranges = {"x": (0.0, 255.0), "c": (0.0, 255.0), "h": (-1e6, 1e6)}
    plain, _, reaching = drawn(signature, 0, ranges)
    x, codes = reaching.inputs["x"], reaching.inputs["c"]
    assert reaching.again and plain.inputs["x"].max() < 10
    assert 0.01 < (x < 0).mean() < 0.05 and 0.01 < (x > 255).mean() < 0.05
    assert (codes.min(), codes.max()) == (0, 255) and codes.dtype == "uint8"
    assert np.isfinite(reaching.inputs["h"]).all()
    assert len(drawn(signature, 0)) == 2


def test_a_range_of_fillers_is_none() -> None:
    signature = Signature((TensorSpec("x", "float32", (64,)),), ())
    *_, last = drawn(signature, 0, {"x": (-3.4e38, 0.0)})
    assert np.abs(last.inputs["x"]).max() < 10


def test_samples_are_drawn_last() -> None:
    signature = Signature((TensorSpec("x", "float32", (4,)),), ())
    sample = Draw({"x": np.ones(4, "float32")}, again=True)
    assert drawn(signature, 0, None, [sample])[-1] is sample


def test_operands_are_tried_as_axes_sizes_and_parts() -> None:
    drawn = {"x": np.ones((4, 6), "float32"), "axes": np.array([0, 0]), "parts": np.array([1, 1]), "s": np.float32(-1)}
    others = list(other_operands(drawn))
    assert all(each["x"] is drawn["x"] for each in others)
    assert any(sorted(each["axes"]) == [0, 1] for each in others)
    assert any(sum(each["parts"]) in (4, 6) for each in others)
    assert any(each["s"] > 0 for each in others)
    assert all(each[name].shape == drawn[name].shape for each in others for name in drawn)

"""Operators of ai.onnx.ml: drawn forests, and tables of features, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from relaxc.service.errors import UnsupportedModel
from relaxc.service.frontend import load
from relaxc.service.request import ModelFormat
from tests.frontend.onnx.harness import FLOAT, INT64, check, model, node, run, value, write

FEATURES, TREES, DEPTH = 4, 6, 4
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
DOUBLE = TensorProto.DOUBLE


class Drawn:
    """Trees whose splits are numbers of one decimal, as the inputs are, so that many are equal."""

    def __init__(self, seed: int, modes: tuple[str, ...] = MODES) -> None:
        self.rng, self.modes = np.random.default_rng(seed), modes
        self.nodes: list[dict[str, Any]] = []
        self.roots = [self.grow(tree, DEPTH) for tree in range(TREES)]

    def grow(self, tree: int, depth: int) -> int:
        place = len(self.nodes)
        self.nodes.append({"tree": tree, "mode": "LEAF", "feature": 0, "split": 0.0, "missing": 0, "yes": 0, "no": 0})
        if depth and (depth == DEPTH or self.rng.random() < 0.85):
            self.nodes[place] |= {
                "mode": self.rng.choice(self.modes),
                "feature": int(self.rng.integers(FEATURES)),
                "split": float(np.float32(np.round(self.rng.normal(), 1))),
                "missing": int(self.rng.integers(2)),
                "yes": self.grow(tree, depth - 1),
                "no": self.grow(tree, depth - 1),
            }
        return place

    def column(self, key: str) -> list[Any]:
        return [each[key] for each in self.nodes]

    def listed(self, prefix: str, classes: tuple[int, ...], *, positive: bool) -> dict[str, Any]:
        """The attributes of the older operators; a leaf is of each of the classes."""
        entries = [(at, k) for at, each in enumerate(self.nodes) if each["mode"] == "LEAF" for k in classes]
        weights = self.rng.random(len(entries)) / TREES if positive else self.rng.normal(size=len(entries))
        modes = [each if each == "LEAF" else f"BRANCH_{each}" for each in self.column("mode")]
        return {
            "nodes_treeids": self.column("tree"),
            "nodes_nodeids": list(range(len(self.nodes))),
            "nodes_featureids": self.column("feature"),
            "nodes_values": self.column("split"),
            "nodes_modes": modes,
            "nodes_truenodeids": self.column("yes"),
            "nodes_falsenodeids": self.column("no"),
            "nodes_missing_value_tracks_true": self.column("missing"),
            f"{prefix}_treeids": [self.nodes[at]["tree"] for at, _ in entries],
            f"{prefix}_nodeids": [at for at, _ in entries],
            f"{prefix}_ids": [k for _, k in entries],
            f"{prefix}_weights": weights.tolist(),
        }

    def rows(self, dtype: str = "float32") -> Any:
        """Inputs, NaN and infinities among them."""
        x = np.round(self.rng.normal(size=(23, FEATURES)), 1).astype(dtype)
        x[self.rng.random(x.shape) < 0.1] = np.nan
        x[0, 0], x[1, 1] = -np.inf, np.inf
        return x


def agrees(path: Path, x: Any) -> None:
    imported = load(path, ModelFormat.ONNX)
    got = run(imported, {"x": x})
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for spec, want in zip(imported.signature.outputs, session.run(None, {"x": x}), strict=True):
        assert got[spec.name].dtype == want.dtype
        np.testing.assert_allclose(got[spec.name], want, rtol=1e-5, atol=1e-6, err_msg=spec.name)


def ml(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)


@pytest.mark.parametrize("join", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_regressors_join_their_trees(join: str, tmp_path: Path) -> None:
    drawn = Drawn(3)
    given = drawn.listed("target", (0, 1, 2), positive=False)
    one = ml(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        n_targets=3,
        aggregate_function=join,
        base_values=[0.5, -1.0, 2.0],
        **given,
    )
    agrees(write(tmp_path, model([one], [value("x", ["n", FEATURES])], [value("y", ["n", 3])])), drawn.rows())


@pytest.mark.parametrize(
    ("classes", "count", "positive", "transform", "base"),
    [
        ((0,), 2, False, "LOGISTIC", [0.3]),
        ((0,), 2, True, "NONE", []),
        ((1,), 2, False, "LOGISTIC", []),
        ((0, 1), 2, True, "NONE", []),
        ((0, 1, 2), 3, False, "SOFTMAX", [0.1, 0.2, -0.3]),
    ],
)
def test_classifiers(
    classes: tuple[int, ...], count: int, positive: bool, transform: str, base: list[float], tmp_path: Path
) -> None:
    drawn = Drawn(count)
    more = {"base_values": base} if base else {}
    given = drawn.listed("class", classes, positive=positive) | more
    labels = list(range(5, 5 + count))
    one = ml("TreeEnsembleClassifier", ["x"], ["l", "y"], post_transform=transform, classlabels_int64s=labels, **given)
    results = [value("l", ["n"], INT64), value("y", ["n", count])]
    agrees(write(tmp_path, model([one], [value("x", ["n", FEATURES])], results)), drawn.rows())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_ensemble_of_opset_5(dtype: str, tmp_path: Path) -> None:
    drawn = Drawn(7, (*MODES, "MEMBER"))
    inner = [at for at, each in enumerate(drawn.nodes) if each["mode"] != "LEAF"]
    leaves = [at for at, each in enumerate(drawn.nodes) if each["mode"] == "LEAF"]
    codes = [(*MODES, "MEMBER").index(drawn.nodes[at]["mode"]) for at in inner]

    def side(key: str) -> tuple[list[int], list[int]]:
        targets = [drawn.nodes[at][key] for at in inner]
        places = [(leaves if at in leaves else inner).index(at) for at in targets]
        return places, [int(at in leaves) for at in targets]

    def array(values: list[Any], kind: str = dtype) -> Any:
        return numpy_helper.from_array(np.array(values, kind))

    (yes, yes_leaf), (no, no_leaf) = side("yes"), side("no")
    one = ml(
        "TreeEnsemble",
        ["x"],
        ["y"],
        nodes_modes=array(codes, "uint8"),
        nodes_splits=array([drawn.nodes[at]["split"] for at in inner]),
        nodes_featureids=[drawn.nodes[at]["feature"] for at in inner],
        nodes_missing_value_tracks_true=[drawn.nodes[at]["missing"] for at in inner],
        nodes_truenodeids=yes,
        nodes_trueleafs=yes_leaf,
        nodes_falsenodeids=no,
        nodes_falseleafs=no_leaf,
        membership_values=array([each for code in codes if code == 6 for each in (1, 2, np.nan)]),
        leaf_targetids=[at % 2 for at in leaves],
        leaf_weights=array(drawn.rng.normal(size=len(leaves)).tolist()),
        tree_roots=[inner.index(at) for at in drawn.roots],
        n_targets=2,
    )
    kind = FLOAT if dtype == "float32" else DOUBLE
    proto = model([one], [value("x", ["n", FEATURES], kind)], [value("y", ["n", 2], kind)], opset=21, ml=5)
    agrees(write(tmp_path, proto), drawn.rows(dtype))


def test_tables_of_features(tmp_path: Path) -> None:
    weights = np.arange(3 * FEATURES) / 7 - 1
    nodes = [
        ml("Imputer", ["x"], ["whole"], imputed_value_floats=[0.5], replaced_value_float=float("nan")),
        ml("Scaler", ["whole"], ["scaled"], offset=[0.1, 0.2, 0.3, 0.4], scale=[2.0]),
        *(ml("Normalizer", ["scaled"], [name], norm=name) for name in ("MAX", "L1", "L2")),
        ml("Binarizer", ["scaled"], ["ones"], threshold=0.2),
        ml("FeatureVectorizer", ["L1", "ones"], ["joined"], inputdimensions=[FEATURES, FEATURES]),
        ml("ArrayFeatureExtractor", ["joined", "places"], ["few"]),
        ml("LinearRegressor", ["L2"], ["line"], coefficients=weights, intercepts=[0.5, 1.0, 2.0], targets=3),
        ml(
            "LinearClassifier",
            ["L2"],
            ["label", "chances"],
            coefficients=weights,
            intercepts=[0.5, 0.4, 0.3],
            classlabels_ints=[7, 8, 9],
            post_transform="SOFTMAX",
        ),
        ml("LabelEncoder", ["label"], ["named"], keys_int64s=[9, 7], values_floats=[0.5, 2.5], default_float=-1.0),
    ]
    results = [value(name, ["n", FEATURES]) for name in ("MAX", "L1", "L2")]
    results += [value("few", ["n", 2]), value("line", ["n", 3]), value("chances", ["n", 3]), value("named", ["n"])]
    proto = model(nodes, [value("x", ["n", FEATURES])], results, ml=2, places=np.array([5, 0]))
    check(write(tmp_path, proto))


def test_labels_that_are_strings_are_refused_by_name(tmp_path: Path) -> None:
    one = ml("LabelEncoder", ["x"], ["y"], keys_int64s=[1], values_strings=["a"])
    proto = model([one], [value("x", ["n"], INT64)], [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])])
    with pytest.raises(UnsupportedModel, match=r"y.*string|string"):
        load(write(tmp_path, proto), ModelFormat.ONNX)


def test_a_model_of_tables_alone_names_no_other_opset(tmp_path: Path) -> None:
    one = ml("Binarizer", ["x"], ["y"], threshold=0.5)
    proto = model([one], [value("x", ["n", FEATURES])], [value("y", ["n", FEATURES])])
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    check(write(tmp_path, proto))

"""The error tree: codes, round trips through JSON, and exit codes by family."""

from __future__ import annotations

import json

import pytest

from relaxc.service import errors
from relaxc.service.errors import RelaxcError, by_code

KINDS = sorted(by_code().values(), key=lambda kind: kind.code)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_an_error_survives_json(kind: type[RelaxcError]) -> None:
    error = kind("it broke", stage="import", nodes=["a", "b"])
    again = RelaxcError.from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(again) is kind
    assert again.to_dict() == error.to_dict()
    assert str(again) == "it broke"


@pytest.mark.parametrize(
    ("fields", "node"),
    [
        ({}, None),
        ({"nodes": 7}, None),
        ({"nodes": []}, None),
        ({"nodes": ["a", "b"]}, "a"),
        ({"node": "c", "nodes": ["a"]}, "c"),
        (
            {"ops": {"Frob": {"count": 2, "nodes": ["/x/Frob", "/y/Frob"], "reason": ""}, "Gob": {"nodes": ["g"]}}},
            "/x/Frob",
        ),
        ({"ops": {"Frob": {"nodes": []}, "Gob": {"nodes": ["g"]}}}, "g"),
        ({"ops": ["Frob"]}, None),
        ({"ops": {"Frob": ["a"]}}, None),
    ],
)
def test_the_first_node_that_an_error_knows(fields: dict[str, object], node: str | None) -> None:
    assert errors.UnsupportedModel("no such operator", **fields).node == node


def test_a_remedy_of_the_instance_wins_and_stays_there() -> None:
    class_remedy = errors.InvalidTarget.remedy
    error = errors.InvalidTarget("no such target", remedy="Use another.")
    assert error.remedy == "Use another."
    assert RelaxcError.from_dict(error.to_dict()).remedy == "Use another."
    assert errors.InvalidTarget("x").remedy == class_remedy


def test_an_unknown_code_gives_the_base_class() -> None:
    error = RelaxcError.from_dict({"code": "from-the-future", "message": "hm"})
    assert type(error) is RelaxcError
    assert error.exit_code == 1


def test_codes_are_kebab_case_of_the_class_name_and_unique() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RelaxcError)]
    for kind in kinds:
        words = "".join(f"-{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("-")
        assert kind.code == ("relaxc-error" if kind is RelaxcError else words)
    assert len(kinds) == len(by_code())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_a_family_shares_its_exit_code(kind: type[RelaxcError]) -> None:
    families = {family.__name__: family.exit_code for family in RelaxcError.__subclasses__()}
    family = next((base for base in kind.__mro__ if base.__name__ in families), None)
    assert kind.exit_code == (families[family.__name__] if family else 1)
    assert 400 <= kind.http_status <= 599
    assert kind.remedy.endswith(".")


def test_families_have_exit_codes_of_their_own() -> None:
    codes = [family.exit_code for family in RelaxcError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert not {0, 1} & set(codes)

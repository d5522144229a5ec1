"""Settings: the environment is read and checked, and every setting states its unit and its effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaxc.service.config import Settings, settings
from relaxc.service.errors import InvalidOption


@pytest.fixture(autouse=True)
def _fresh_settings() -> object:
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_the_environment_wins_over_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RELAXC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("RELAXC_WORKERS", "3")
    assert settings().cache_dir == tmp_path
    assert settings().workers == 3


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "WEBHOOK_SECRET", "API_KEY"):
        monkeypatch.setenv(f"RELAXC_{name}", "hunter2")
    found = settings()
    assert "hunter2" not in f"{found!r} {found} {found.model_dump()} {found.model_dump_json()}"


def test_settings_are_read_once_and_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    monkeypatch.setenv("RELAXC_WORKERS", "7")
    assert settings() is before
    with pytest.raises(ValueError, match="frozen"):
        before.workers = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORKERS", "-1"),
        ("WORKERS", "many"),
        ("PORT", "70000"),
        ("COMPILE_TIMEOUT_S", "-1"),
        ("CACHE_MAX_BYTES", "0"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_a_wrong_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"RELAXC_{name}", value)
    with pytest.raises(InvalidOption, match=f"RELAXC_{name} is '{value}'") as caught:
        settings()
    assert caught.value.fields == {"setting": f"RELAXC_{name}"}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_typed_and_explained(name: str) -> None:
    field = Settings.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    assert isinstance(field.json_schema_extra, dict)
    assert set(field.json_schema_extra) == {"unit", "affects_artifact"}
    if name.endswith(("_bytes", "_s")):
        assert field.json_schema_extra["unit"] == ("bytes" if name.endswith("_bytes") else "s")

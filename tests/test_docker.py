"""The container's files, as far as they can be checked without an engine: paths, settings and versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from service.config import Settings

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_copied_path_exists_and_is_in_the_context() -> None:
    copied = [path for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M) for path in line.split()]
    assert {"requirements.lock", "service", "schedules", "tuning_logs"} <= set(copied)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert set(copied) == {line[1:] for line in ignored if line.startswith("!")}


def test_every_setting_is_one_of_ours() -> None:
    known = {f"RELAXC_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"RELAXC_\w+", DOCKERFILE + COMPOSE)) <= known
    assert len(set(re.findall(r"RELAXC_\w+", DOCKERFILE + COMPOSE))) >= 4


def test_versions_are_the_projects() -> None:
    assert f"image: relaxc:{PROJECT['version']}\n" in COMPOSE
    [minimum] = re.findall(r">=(\S+)", PROJECT["requires-python"])
    assert set(re.findall(r"^FROM python:(\d+\.\d+)-", DOCKERFILE, re.M)) == {minimum}
    [extras] = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_it_runs_without_rights() -> None:
    assert re.search(r"^USER (?!0\b|root)\d+:\d+$", DOCKERFILE, re.M)
    assert DOCKERFILE.index("USER ") < DOCKERFILE.index('CMD ["relaxc"')
    assert "HEALTHCHECK" in DOCKERFILE
    assert "VOLUME /var/lib/relaxc" in DOCKERFILE
    assert "cap_drop: [ALL]" in COMPOSE

"""The container's files, as far as they can be checked without an engine; tests/docker runs what they make."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from relaxc.service.config import Settings
from relaxc.service.process.sandbox.seccomp import _CHANGES_MODES, _DENIED

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
FOR_CUDA = (ROOT / "docker" / "Dockerfile.cuda").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
BUILD = (ROOT / "docker" / "build").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SANDBOX = {"mount", "mount_setattr", "unshare", "setns", "umount2", "chroot"}
"""What a job's sandbox is set up with, and what the sandbox then denies to the job."""


def test_nothing_is_copied_but_what_the_build_gathers() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M)
    assert copied == ["wheels", "imported.py", "sbom.py"]
    assert "index-url" not in DOCKERFILE + BUILD, "wheels come from where pip finds them on the host"
    assert "--constraint requirements.lock" in BUILD


def test_every_setting_is_one_of_ours() -> None:
    known = {f"RELAXC_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"RELAXC_\w+", DOCKERFILE + COMPOSE + FOR_CUDA)) <= known
    assert len(set(re.findall(r"RELAXC_\w+", DOCKERFILE + COMPOSE))) >= 4


def test_versions_are_the_projects() -> None:
    assert f"image: relaxc:{PROJECT['version']}\n" in COMPOSE
    [minimum] = re.findall(r">=(\S+)", PROJECT["requires-python"])
    assert f"/opt/relaxc/lib/python{minimum}/site-packages" in DOCKERFILE
    found = {extras for text in (DOCKERFILE, BUILD) for extras in re.findall(r'"relaxc\[([\w,]+)\]', text)}
    assert len(found) == 1
    assert set(found.pop().split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_image_for_gpus_is_the_service_with_packages_that_are_pinned() -> None:
    assert re.findall(r"^FROM (\S+)", FOR_CUDA, re.M) == ["${RELAXC}"]
    assert re.findall(r"^USER (\S+)", FOR_CUDA, re.M)[-1] == re.findall(r"^USER (\S+)", DOCKERFILE, re.M)[-1]
    lock = (ROOT / "docker" / "cuda.lock").read_text(encoding="utf-8")
    pins = [line for line in lock.splitlines() if not line.startswith("#")]
    assert pins
    assert all(re.fullmatch(r"nvidia-[\w-]+==13\.0\.\d+", line) for line in pins)


def test_a_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    status = tmp_path / "status"
    blocks = (("g++", "install ok installed"), ("gone", "deinstall ok config-files"), ("libc6", "install ok installed"))
    text = "Package: {}\nStatus: {}\nArchitecture: amd64\nVersion: 4:12.2.0-3\nDescription: x\n more: y\n\n"
    status.write_text("".join(text.format(name, state) for name, state in blocks))
    command = [sys.executable, ROOT / "docker" / "sbom.py", "relaxc", "--status", status]
    said = subprocess.run(command, capture_output=True, check=True).stdout
    assert subprocess.run(command, capture_output=True, check=True).stdout == said
    bom = json.loads(said)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    found = {each["purl"]: each for each in bom["components"]}
    debian = [purl for purl in found if purl.startswith("pkg:deb/")]
    assert debian == [f"pkg:deb/debian/{name}@4:12.2.0-3?arch=amd64&distro=debian-12" for name in ("g++", "libc6")]
    assert f"pkg:pypi/numpy@{metadata.version('numpy')}" in found
    assert f"pkg:pypi/apache-tvm@{metadata.version('apache-tvm')}" in found


def test_it_runs_without_rights() -> None:
    assert re.search(r"^USER (?!0\b|root)\d+:\d+$", DOCKERFILE, re.M)
    assert DOCKERFILE.index("USER ") < DOCKERFILE.index('CMD ["relaxc"')
    assert "HEALTHCHECK" in DOCKERFILE
    assert "VOLUME /var/lib/relaxc" in DOCKERFILE
    server = _server()
    assert (server["cap_drop"], server["read_only"]) == (["ALL"], True)
    assert {"no-new-privileges:true", "seccomp=./seccomp.json"} <= set(server["security_opt"])


def test_the_profile_allows_by_name_and_nothing_that_a_job_is_denied_but_its_sandbox() -> None:
    profile: dict[str, Any] = json.loads((ROOT / "docker" / "seccomp.json").read_text(encoding="utf-8"))
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {group["action"] for group in profile["syscalls"]} == {"SCMP_ACT_ALLOW"}
    names = [name for group in profile["syscalls"] for name in group["names"]]
    assert len(names) == len(set(names))
    assert set(names) & set(_DENIED) == SANDBOX
    assert set(_CHANGES_MODES) - {"fchmodat2"} <= set(names), "the server changes modes of its own files"


def _server() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]["server"]
    return found

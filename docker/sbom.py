"""Prints what an image is made of, as CycloneDX 1.5: Python's distributions and Debian's packages, by name and version.

    python sbom.py IMAGE --status /var/lib/dpkg/status      all that is installed here and there
    python sbom.py IMAGE --files /image --only NAME…        these distributions, and the packages that own the files

Run as an image is built, by its Python. Equal contents give equal bytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_STATUS = Path("/var/lib/dpkg/status")


def of_python(only: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """The distributions that Python finds, or these of them."""
    wanted = set(only)
    for each in distributions():
        name = each.metadata["Name"]
        if not wanted or name in wanted:
            yield _component(name, each.version, f"pkg:pypi/{name.lower()}@{each.version}", _license(each))


def _license(each: Distribution) -> list[dict[str, Any]]:
    said = each.metadata.get("License-Expression")
    return [{"expression": said}] if said else []


def of_debian(status: Path, only: set[str] | None = None) -> Iterator[dict[str, Any]]:
    """The installed packages of a dpkg status file, or these of them."""
    for block in status.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(" "))
        if fields.get("Status") != "install ok installed" or (only is not None and fields["Package"] not in only):
            continue
        name, version, arch = fields["Package"], fields["Version"], fields["Architecture"]
        yield _component(name, version, f"pkg:deb/debian/{name}@{version}?arch={arch}&distro=debian-12")


def owners(folder: Path) -> set[str]:
    """The packages whose files lie in `folder` as they do under `/`; what nobody owns is ours."""
    found = set()
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        inside = Path("/") / path.relative_to(folder)
        for name in (inside, Path("/usr") / inside.relative_to("/")):  # /lib is /usr/lib, and dpkg knows one of them
            said = subprocess.run(["dpkg-query", "--search", str(name)], capture_output=True, text=True, check=False)
            found |= {line.split(":", 1)[0] for line in said.stdout.splitlines()}
    return found


def _component(name: str, version: str, purl: str, licenses: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    return {**found, "licenses": list(licenses)} if licenses else found


def bom(image: str, components: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The document: each once, in the order of their names."""
    once = {each["bom-ref"]: each for each in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image}},
        "components": [once[ref] for ref in sorted(once)],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--status", type=Path, default=_STATUS)
    parser.add_argument("--files", type=Path)
    parser.add_argument("--only", nargs="*", default=())
    asked = parser.parse_args()
    packages = owners(asked.files) if asked.files else None
    print(json.dumps(bom(asked.image, [*of_python(asked.only), *of_debian(asked.status, packages)]), indent=1))

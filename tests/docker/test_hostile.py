"""The hostile drill against the service in its container: nothing of it is reached that is not reached outside."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.docker.contained import ContainedServer
from tests.drills.hostile import run
from tests.drills.test_hostile import check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_attacks_on_the_container_are_refused(image: str, tmp_path: Path) -> None:
    found = run(
        seconds=20, connections=4, seed=6, folder=tmp_path / "drill", make=partial(ContainedServer, image=image)
    )
    check(found)
    assert found["sandbox"]["user"] == "same"
    assert found["sandbox"]["processes"] == "namespace"

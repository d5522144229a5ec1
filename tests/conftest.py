"""Options and fixtures for every test."""

from __future__ import annotations

import contextlib
import importlib.machinery
import inspect
import os
import signal
import sys
from pathlib import Path

import pytest

from schedules.strict import STRICT
from tests.sampling import mark_unsampled
from tests.zoo.folder import share_exports

os.environ[STRICT] = "1"  # children inherit it

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TVMScript asks for the source of every frame above it. For a frame of a module without a file, `inspect` goes through
# all modules each time; while pytest imports a test there are dozens of such frames, and it took ten seconds in all.
for _name, _module in list(sys.modules.items()):
    if getattr(_module, "__loader__", None) is importlib.machinery.FrozenImporter:
        inspect.modulesbyfile.setdefault(f"<frozen {_name}>", _name)

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what the tests produce")
    parser.addoption("--points", type=int, help="points of each template's space (tests/conformance)")


def pytest_configure(config: pytest.Config) -> None:
    """In the process that starts the others: a test's model that is exported by one of them is there for all."""
    if not hasattr(config, "workerinput"):
        sharing = contextlib.ExitStack()
        sharing.enter_context(share_exports())
        config.add_cleanup(sharing.close)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before `-m` chooses."""
    mark_unsampled(items, whole=config.args_source == pytest.Config.ArgsSource.TESTPATHS)


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compares a text with tests/golden/NAME; `pytest --update-golden` writes it instead."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(), f"{path.name} differs: look at it, then run pytest --update-golden"

    return check

"""Options and fixtures for every test."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import pytest

from relaxc.schedules.strict import STRICT
from tests import other_cpus
from tests.sampling import mark_unsampled
from tests.zoo.folder import share_exports

os.environ[STRICT] = "1"  # children inherit it
# TVM's workers yield 300,000 times when a kernel has ended, and when they begin, before they sleep. Nobody gives pools
# back, so beside a dozen of them, and other tests on the same cores, that took a minute of processors.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "1000")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _frames(frame: FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.getouterframes`, but the source is read of the three nearest frames alone.

    TVMScript asks for that of every frame above a decorator, and looks at the third. Below pytest there are 70, and
    some have no file, for which `inspect` goes through all modules: TVM's intrinsics took 20 seconds in each process.
    """
    found: list[inspect.FrameInfo] = []
    while frame is not None:
        if len(found) < 3:
            info = inspect.getframeinfo(frame, context)
        else:
            info = inspect.Traceback(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, None, None)
        found.append(inspect.FrameInfo(frame, *info))
        frame = frame.f_back
    return found


inspect.getouterframes = _frames

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


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Has kernels for CPUs with more than this one run here, where a test imports TVM.

    Leaves what was imported and collected to no garbage collection: that is a third of a second for each full one,
    which every compile asks for, and a child that is forked writes to no page that it shares.
    """
    if "tvm" in sys.modules:
        other_cpus.install()
    _freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """And, behind the last test of a file, what that one has imported and keeps."""
    told = yield
    if nextitem is None or nextitem.path != item.path:
        _freeze()
    return told


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def code_to_be_read() -> Iterator[None]:
    """Machine code of other CPUs stays what it is for them: the test reads it, and does not run it."""
    with other_cpus.code_to_be_read():
        yield


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

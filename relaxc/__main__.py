"""`python -m relaxc VERB …`, the same as the installed command `relaxc`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

__all__ = ["command"]


def command() -> NoReturn:
    """Run the command line, and end the process with its exit code.

    What stands in `atexit` runs, but not the destructors of libraries. TVM's joins its worker threads, which look for
    work 300,000 times before they hear of the end, and give way to everybody each time: on a machine with forty busy
    processes that took twenty minutes.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has us ignore it
        signal.signal(signal.SIGINT, _interrupted)  # until `main` can say it
    from relaxc.service.process.early import start_early

    start_early(sys.argv[1:])
    from relaxc.service.cli.main import main  # takes a tenth of a second, in which a worker imports TVM

    code = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(leave)  # the first to be registered is the last to run
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    sys.exit(code)


def _interrupted(*_: object) -> NoReturn:
    os.write(2, b"relaxc: interrupted\n")
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    command()

"""Runs one command line and turns what goes wrong into an exit code, a line and a remedy."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import typer

from relaxc.service.cli.app import app
from relaxc.service.cli.config import warnings
from relaxc.service.cli.output import print_json
from relaxc.service.errors import CompilerCrashed, InvalidOption, NotTuned, RelaxcError, ToolMissing

__all__ = ["main"]

_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_BROKEN_PIPE = 128 + signal.SIGPIPE

_UNWRITABLE = os.EX_IOERR

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_LOG_LINES = 8
"""Lines of a crashed worker's log that are shown without --verbose."""

# What is not in the base installation, and the extra of pyproject.toml that has it.
_EXTRAS = {
    "fastapi": "server",
    "uvicorn": "server",
    "sqlalchemy": "server",
    "alembic": "server",
    "structlog": "server",
    "httpx": "client",
    "tenacity": "client",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "torch": "torch",
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """How errors are shown; read before parsing, so that usage errors are shown so too."""

    json: bool
    verbose: bool
    help: bool = False

    @staticmethod
    def of(arguments: Sequence[str]) -> Wishes:
        options = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return Wishes("--json" in options, "--verbose" in options, not {"-h", "--help"}.isdisjoint(options))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `relaxc ARGUMENTS…` (those of the process if None) and return its exit code (docs/errors.md)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    wishes = Wishes.of(arguments)
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _run(arguments, wishes)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        if not _is_full(error):
            raise
        print(f"relaxc: the output cannot be written: {error.strerror}", file=sys.stderr)
        _drop_output()
        return _UNWRITABLE
    finally:
        signal.signal(signal.SIGTERM, before)
    return code


def _drop_output() -> None:
    """What is still buffered would raise again when the interpreter flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_full(error: OSError) -> bool:
    """Whether this may be of writing to stdout, which has no file name."""
    return error.errno in _FULL and error.filename is None


def _run(arguments: list[str], wishes: Wishes) -> int:
    try:
        if callable(signal.getsignal(signal.SIGINT)):  # and not ignored
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if arguments and not wishes.help:
            _open_log(wishes.verbose)
            for line in warnings():
                print(f"relaxc: {line}", file=sys.stderr)
        result = app(arguments, prog_name="relaxc", standalone_mode=False)
    except RelaxcError as error:
        return _report(error, wishes)
    except typer.TyperException as error:  # a usage error of the parser
        usage = InvalidOption(error.format_message() or "a command is missing", remedy=_usage_remedy(error))
        return _report(usage, wishes)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            return _report_bug(error, wishes)
        missing = ToolMissing(f"{error.name} is not installed", remedy=f"pip install 'relaxc[{extra}]'.", extra=extra)
        return _report(missing, wishes)
    except (KeyboardInterrupt, typer.Abort):
        print("relaxc: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # typer turns it into this
            raise stop.__context__ from None
        raise
    except BrokenPipeError:
        raise
    except OSError as error:
        if _is_full(error):
            raise
        if error.errno != errno.ENAMETOOLONG:
            return _report_bug(error, wishes)
        return _report(InvalidOption(f"a file name is too long: {str(error.filename)[:100]!r} …"), wishes)
    except Exception as error:  # noqa: BLE001  # a bug of ours: the user gets a line, an exit code and a way to report it
        return _report_bug(error, wishes)
    if result == _INTERRUPTED:  # typer turns KeyboardInterrupt into this result
        print("relaxc: interrupted", file=sys.stderr)
    return result if isinstance(result, int) else 0


def _open_log(verbose: bool) -> None:
    from relaxc.service.config import settings  # takes 0.1 s, which help does not wait for

    level = "DEBUG" if verbose else settings().log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _usage_remedy(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "relaxc"
    return f"`{path} --help` lists what it takes."


def _report(error: RelaxcError, wishes: Wishes) -> int:
    if wishes.verbose:
        traceback.print_exception(error)
        for name, value in error.fields.items():
            print(f"  {name}: {value}", file=sys.stderr)
    elif isinstance(error, CompilerCrashed):
        for line in [*error.fields.get("log_tail", [])[-_LOG_LINES:], *filter(None, [error.fields.get("repro")])]:
            print(f"  | {line}", file=sys.stderr)
    elif isinstance(error, NotTuned):
        for row in error.fields.get("workloads", []):
            print(f"  | {_kernel(row)}", file=sys.stderr)
    print(f"relaxc: error [{error.code}]: {error.message}", file=sys.stderr)
    print(f"remedy: {error.remedy}", file=sys.stderr)
    if wishes.json:
        print_json({"error": error.to_dict()})
    return error.exit_code


def _kernel(row: dict[str, Any]) -> str:
    """`0123456789abcdef  12.5%  cpu.conv2d_blocked  1x64x56x56 …  conv2d, conv2d1`, and a record that does not fit."""
    unfit = f"  (record {row['passed_over'][0][0]}: {row['passed_over'][0][1]})" if row["passed_over"] else ""
    words = (row["workload"], f"{row['share']:6.1%}", row["rule"], row["shapes"], ", ".join(row["functions"]))
    return "  ".join(words) + unfit


def _report_bug(error: Exception, wishes: Wishes) -> int:
    if wishes.verbose:
        traceback.print_exception(error)
    bug = RelaxcError(
        f"this is a bug: {type(error).__name__}: {error}",
        remedy=RelaxcError.remedy if not wishes.verbose else "Report the trace above.",
    )
    return _report(bug, Wishes(wishes.json, verbose=False))


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(_TERMINATED)  # unlike the default, this unwinds: children are stopped, temporary files removed

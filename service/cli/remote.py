"""`relaxc --server URL VERB`: a verb's work done by a server, with this machine's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from relaxc.service.errors import InvalidOption, RelaxcError

if TYPE_CHECKING:
    from relaxc.service.client import Client

__all__ = ["VERBS", "KeyFile", "Remote", "Server"]

VERBS = ("audit", "compile", "jobs", "quota", "targets", "tune", "workers")
"""The verbs that take --server."""

_REMEDIES = {
    "unauthorized": "Give a valid key: `relaxc --key-file FILE VERB …`, or RELAXC_API_KEY. `relaxc keys create NAME` "
    "makes one on the server's machine.",
    "job-not-found": "`relaxc jobs ls` lists the jobs that your key may see.",
    "job-ended": "Nothing is left to do; `relaxc jobs show JOB` shows how it ended.",
}
"""What helps on the command line, by the code of an error whose own remedy speaks of HTTP."""

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help=f"Let the server there do it: {', '.join(VERBS)}; RELAXC_SERVER if not given.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="File with the API key for --server; RELAXC_API_KEY if not given.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Remote:
    """Where the command line says that its work is done."""

    server: str | None = None
    key_file: Path | None = None

    def check(self, verb: str | None) -> None:
        """Raise InvalidOption where --server is given to a verb that has no use for it; the variable is no wish."""
        if self.server is not None and verb is not None and verb not in VERBS:
            raise InvalidOption(
                f"`relaxc {verb}` works on this machine: it takes no --server",
                remedy=f"Leave it out; {', '.join(VERBS)} take it.",
                option="server",
            )

    @property
    def url(self) -> str | None:
        """The server's address; None for this machine."""
        from relaxc.service.config import settings

        return self.server or settings().server

    def refuse(self, **given: object) -> None:
        """Raise InvalidOption for an option that has a value and works on this machine only."""
        for name, value in given.items():
            if value:
                raise InvalidOption(
                    f"--{_dashed(name)} works on this machine only, not on the server {self.url}",
                    remedy=f"Leave --{_dashed(name)} out, or --server (and RELAXC_SERVER unset).",
                    option=_dashed(name),
                )

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Give a client of it, whose errors name verbs and options in place of calls and headers.

        Raise InvalidOption for an address or a key file that cannot be used.
        """
        from relaxc.service.client import Client
        from relaxc.service.config import settings

        assert self.url is not None
        secret = settings().api_key
        of_settings = None if secret is None else secret.get_secret_value()
        with Client(self.url, self._key() if self.key_file else of_settings) as client:
            try:
                yield client
            except RelaxcError as error:
                error.remedy = _REMEDIES.get(error.code, error.remedy)  # type: ignore[misc]
                raise

    def _key(self) -> str | None:
        assert self.key_file is not None
        try:
            key = self.key_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"cannot read the key in {self.key_file}: {error}", option="key-file") from error
        if not key.isprintable() or not key:
            raise InvalidOption(f"{self.key_file} has no key, which is one line", option="key-file")
        return key


def _dashed(name: str) -> str:
    return name.replace("_", "-")

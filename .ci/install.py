"""Makes a .venv with the pinned packages, quietly: `python3 .ci/install.py VENV ARGUMENTS-OF-PIP…`.

Says beforehand what takes minutes and how far it is meanwhile; of what pip prints, only the end of a failure is shown.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

TELL_S = 10.0
"""How often a log that is no terminal gets a line; a terminal's line is rewritten each second."""


class Progress:
    """One line on what pip is at."""

    def __init__(self, total: int) -> None:
        self._total, self._known, self._at = total, set[str](), "asking for them"
        self._start = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def heard(self, line: str) -> None:
        """Takes a line of pip's."""
        if found := re.match(r"(?:Collecting|Requirement already satisfied:) ([\w.-]+)", line):
            self._known.add(found[1])
            self._at = f"{min(len(self._known), self._total)} of {self._total} fetched"
        elif line.startswith("Installing collected packages"):
            self._at = "all fetched; unpacking them"

    def close(self) -> None:
        """Says no more."""
        self._over.set()
        self._thread.join()
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)

    def _tell(self) -> None:
        while not self._over.wait(1.0 if sys.stdout.isatty() else TELL_S):
            text = f"  {self._at} ({time.monotonic() - self._start:.0f} s)"
            start, end = ("\r\x1b[K", "") if sys.stdout.isatty() else ("", "\n")
            print(f"{start}{text}", end=end, flush=True)


def install(python: Path, arguments: list[str], total: int) -> int:
    """pip's exit status; what it said is on stderr when that is not 0."""
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", *arguments]
    said: list[str] = []
    progress = Progress(total)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            said.append(line)
            progress.heard(line)
    progress.close()
    if pip.returncode:
        print("".join(said[-40:]), end="", file=sys.stderr)
    return pip.returncode


def main(folder: str, *arguments: str) -> int:
    """Makes the environment, or repairs it, and installs."""
    python = Path(folder) / "bin" / "python"
    print(f"making {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    listed = [Path(name).read_text() for flag, name in itertools.pairwise(arguments) if flag == "-r"]
    total = sum(1 for text in listed for line in text.splitlines() if "==" in line)
    if total:
        print(f"installing {total} pinned packages, 2 GB unpacked: minutes, the first time only", flush=True)
    start = time.monotonic()
    status = install(python, list(arguments), total)
    if total and not status:
        print(f"installed in {time.monotonic() - start:.0f} s", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

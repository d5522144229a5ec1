"""`python -m service VERB …`, the same as the installed command `relaxc`."""

from __future__ import annotations

import sys

from service.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

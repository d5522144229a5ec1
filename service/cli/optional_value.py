"""Options that may stand without their value: `--require-tuned` for `--require-tuned=all`; typer has no word for it."""

from __future__ import annotations

from typer.core import TyperCommand

__all__ = ["WITHOUT_VALUE", "TakesBareOptions"]

WITHOUT_VALUE = {"--require-tuned": "all"}
"""What these options mean when they stand alone."""


class TakesBareOptions(TyperCommand):
    """A command that takes them."""

    def parse_args(self, ctx, args):  # type: ignore[no-untyped-def]  # the context's type is not public
        """Parse as `click.Command.parse_args` does."""
        end = args.index("--") if "--" in args else len(args)
        filled = [f"{word}={WITHOUT_VALUE[word]}" if word in WITHOUT_VALUE else word for word in args[:end]]
        return super().parse_args(ctx, filled + args[end:])

"""The verbs of `relaxc`, in the order in which help shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from relaxc.service.cli import (
    audit,
    bench,
    cache,
    compile,
    config,
    demo,
    doctor,
    inspect,
    jobs,
    keys,
    owners,
    package,
    profile,
    quota,
    rebuild,
    records,
    run,
    serve,
    targets,
    tune,
    verify,
    version,
    worker,
    workers,
)
from relaxc.service.cli.optional_value import TakesBareOptions
from relaxc.service.cli.options import Verbose
from relaxc.service.cli.remote import KeyFile, Remote, Server

__all__ = ["app"]


def unwrapped(verb: Callable[..., None]) -> str:
    """Return a verb's docstring with each paragraph on one line: the terminal's width breaks lines, not ours."""
    return "\n\n".join(" ".join(part.split()) for part in (verb.__doc__ or "").split("\n\n"))


app = typer.Typer(
    name="relaxc",
    help="A model in, one verified .so out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from relaxc.service.machine import version_of

        print(f"relaxc {version_of('relaxc') or 'of a checkout that is not installed'}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print relaxc's version and exit.", is_eager=True, callback=_print_version)
]


@app.callback(epilog="`relaxc help VERB` shows what a verb does and takes.")
def relaxc(
    context: typer.Context,
    server: Server = None,
    key_file: KeyFile = None,
    verbose: Verbose = False,
    print_version: Version = False,
) -> None:
    """A model in, one verified .so out.

    Exit codes tell what went wrong: docs/errors.md has the table.
    """
    context.obj = Remote(server, key_file)
    context.obj.check(context.invoked_subcommand)


for verb in (
    compile.compile,
    run.run,
    bench.bench,
    profile.profile,
    verify.verify,
    rebuild.rebuild,
    inspect.inspect,
    package.package,
    tune.tune,
    targets.targets,
    quota.quota,
    serve.serve,
    worker.worker,
    workers.workers,
    audit.audit,
    demo.demo,
    doctor.doctor,
    config.config,
    version.version,
):
    app.command(help=unwrapped(verb), cls=TakesBareOptions)(verb)
app.add_typer(jobs.app, name="jobs")
app.add_typer(records.app, name="records")
app.add_typer(cache.app, name="cache")
app.add_typer(owners.app, name="owners")
app.add_typer(keys.app, name="keys")

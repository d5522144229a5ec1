"""`relaxc cache ls|explain|gc|scrub`: what the store keeps, why a compile would miss, making room, and rotten bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaxc.service.cli.optional_value import TakesBareOptions
from relaxc.service.cli.options import (
    Json,
    Model,
    NoRecords,
    NoVerify,
    OptLevel,
    Plugins,
    PrecisionName,
    Records,
    RequireTuned,
    Seed,
    Shapes,
    SmallWeights,
    Target,
    Verbose,
    Weights,
    options_for,
)
from relaxc.service.cli.output import console, print_json, size, table

if TYPE_CHECKING:
    from relaxc.service.artifact.entry import Entry
    from relaxc.service.artifact.store import Store
    from relaxc.service.jobs.kernels import Kernels

__all__ = ["app", "explain", "gc", "ls", "scrub"]

app = typer.Typer(help="Look into the artifact store, and make room in it.", no_args_is_help=True)


@app.command()
def ls(json: Json = False, verbose: Verbose = False) -> None:
    """List the stored artifacts, the most recently used first, and count the kernels that compiles share."""
    store = _store()
    entries = [_described(entry) for entry in store.ls()]
    kernels = _kernels().stats()
    if json:
        facts = {"root": str(store.root), "max_bytes": store.max_bytes, "kernels": kernels.to_dict()}
        print_json({**facts, "artifacts": entries})
        return
    shown = table("", "digest", "size", "last used", "target", "options", "host", numbers=("size",))
    for entry in entries:
        build = entry["keys"][0] if entry["keys"] else {}
        row = (entry["digest"][:16], size(entry["size_bytes"]), entry["used_at"], *_key_columns(build))
        shown.add_row(*row)
    console().print(shown)
    total = sum(entry["size_bytes"] for entry in entries)
    print(f"{len(entries)} artifacts, {size(total)} of {size(store.max_bytes)} in {store.root}")
    print(f"{kernels.count} kernels, {size(kernels.size_bytes)} of {size(kernels.max_bytes)}")


@app.command(cls=TakesBareOptions)
def explain(
    model: Model,
    target: Target = "auto",
    shape: Shapes = None,
    precision: PrecisionName = None,
    weights: Weights = None,
    small_weights: SmallWeights = False,
    opt_level: OptLevel = 2,
    plugin: Plugins = None,
    records: Records = None,
    no_records: NoRecords = False,
    require_tuned: RequireTuned = None,
    no_verify: NoVerify = False,
    seed: Seed = 0,
    key_only: Annotated[
        bool, typer.Option("--key", help="Print the key alone, 64 hex digits: the name of the artifact for a CI cache.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Say whether `relaxc compile` with these options would find its artifact in the store, and if not, why not.

    A miss is explained by the nearest key that is stored: what differs between the two. Tuning records count by
    what they say for the target, not by where they are. A compile that misses takes each kernel whose scheduled
    program is the same, as with other weights, from the cache of kernels, unless `source.lowering`, a version of TVM, a
    setting or the target differs.
    """
    from relaxc.service.artifact.key import key_for
    from relaxc.service.compiler import prepare

    options = options_for(
        shape, precision, opt_level, plugin, no_verify, seed, records, no_records, require_tuned, weights,
        small_weights=small_weights,
    )  # fmt: skip
    request = prepare(model, target=target, options=options)
    key = key_for(request)
    if key_only:
        print(key.digest)
        return
    found = _store().explain(key)
    differences = {name: {"stored": old, "wanted": new} for name, (old, new) in found.differences.items()}
    nearest = found.nearest.artifact if found.nearest else None
    if json:
        entries = dict(key.entries)
        print_json(
            {"hit": found.hit, "key": key.digest, "artifact": nearest, "differences": differences, "entries": entries}
        )
    elif found.hit:
        print(f"hit: artifact {nearest}")
    elif nearest is None:
        print("miss: the store has no other key to compare with")
    else:
        print(f"miss: the nearest stored key, of artifact {nearest}, differs in")
        shown = table("", "entry", "stored", "wanted")
        for name, (old, new) in found.differences.items():
            shown.add_row(name, old or "-", new or "-")
        console().print(shown)


@app.command()
def gc(
    max_bytes: Annotated[
        int | None,
        typer.Option("--max-bytes", metavar="N", min=0, help="Size to shrink to; RELAXC_CACHE_MAX_BYTES if not given."),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Remove the least recently used artifacts until the store is small enough, and what dead processes left.

    What is open, or was used in the last 30 seconds, stays. Kernels are removed until they fit into what the artifacts
    leave of N, and into RELAXC_KERNEL_CACHE_MAX_BYTES.
    """
    store, kernels = _store(), _kernels()
    removed = store.gc(max_bytes)
    freed = sum(entry.size_bytes for entry in removed)
    left = kernels.max_bytes
    if max_bytes is not None:
        left = min(left, max(0, max_bytes - sum(entry.size_bytes for entry in store.ls())))
    kernels_freed = kernels.gc(left)
    if json:
        digests = [entry.digest for entry in removed]
        print_json({"removed": digests, "freed_bytes": freed, "kernels_freed_bytes": kernels_freed})
    else:
        print(f"removed {len(removed)} artifacts, {size(freed)}, and {size(kernels_freed)} of kernels")


@app.command()
def scrub(json: Json = False, verbose: Verbose = False) -> None:
    """Hash every stored artifact anew, and remove what has changed: it is compiled again when it is asked for.

    A compile, a load and a download check what they read; this finds what rotted since, and what nobody reads.
    """
    from relaxc.service.cli.progress import StageProgress

    store = _store()
    whole, damaged, total, start = 0, [], len(store.ls()), time.perf_counter()
    with StageProgress() as progress:
        progress({"event": "stage", "stage": "scrub", "state": "start"})
        for done, (entry, error) in enumerate(store.scrub(), 1):
            whole += error is None
            damaged += [] if error is None else [{"digest": entry.digest, "message": error.message}]
            progress({"event": "progress", "done": done, "total": total})
        took_s = time.perf_counter() - start
        progress({"event": "stage", "stage": "scrub", "state": "done", "seconds": took_s})
    if json:
        print_json({"whole": whole, "damaged": damaged})
        return
    for each in damaged:
        print(each["message"])
    print(f"{whole} artifacts are whole, {len(damaged)} were damaged and are removed")


def _store() -> Store:
    from relaxc.service.artifact.store import Store
    from relaxc.service.config import settings

    return Store(settings().cache_dir, settings().cache_max_bytes)


def _kernels() -> Kernels:
    from relaxc.service.config import settings
    from relaxc.service.jobs.kernels import Kernels

    return Kernels.below(settings().cache_dir, settings().kernel_cache_max_bytes)


def _described(entry: Entry) -> dict[str, Any]:
    from datetime import datetime

    return {
        "digest": entry.digest,
        "size_bytes": entry.size_bytes,
        "used_at": datetime.fromtimestamp(entry.used_at).astimezone().isoformat(timespec="seconds"),
        "path": str(entry.path),
        "files": [file.name for file in entry.files],
        "keys": [
            {"key": stored.key.digest, "entries": dict(stored.key.entries), "build": dict(stored.build)}
            for stored in entry.keys
        ],
    }


def _key_columns(stored: dict[str, Any]) -> tuple[str, str, str]:
    """Target, options that are not the default, and the building host of a stored key."""
    import json

    entries = {name: json.loads(text) for name, text in stored.get("entries", {}).items() if _is_option(name)}
    chosen = [f"O{entries['option.opt_level']}"] if "option.opt_level" in entries else []
    chosen += [str(entries["option.precision"])] if entries.get("option.precision") else []
    chosen += ["no-verify"] if entries.get("option.verify") is False else []
    chosen += [
        f"{name.removeprefix('option.shapes.')}={','.join(map(str, dims))}"
        for name, dims in entries.items()
        if name.startswith("option.shapes.")
    ]
    return str(entries.get("target.name", "-")), " ".join(chosen), str(stored.get("build", {}).get("host", "-"))


def _is_option(name: str) -> bool:
    return name == "target.name" or name.startswith("option.")

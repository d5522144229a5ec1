"""What a child can do to us: entries for the worker that behave badly on purpose."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import relaxc.service.errors
from relaxc.service.process.task import Emit


def echo(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tells a few events and gives its payload back."""
    emit({"event": "stage", "stage": "import", "state": "start"})
    emit({"event": "progress", "stage": "import", "done": 1, "total": 2})
    emit({"event": "stage", "stage": "import", "state": "done", "seconds": 0.1})
    emit({"event": "result", "payload": payload})


def groups(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tells the control groups that it is in."""
    emit({"event": "result", "groups": Path("/proc/self/cgroup").read_text()})


def report(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """What the process is like."""
    import resource

    facts = {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "cwd": str(Path.cwd()),
        "tmp": tempfile.mkdtemp(),
        "torch": sys.modules.get("torch") is not None,
        "data": resource.getrlimit(resource.RLIMIT_DATA)[1],
        "fsize": resource.getrlimit(resource.RLIMIT_FSIZE)[1],
        "core": resource.getrlimit(resource.RLIMIT_CORE)[1],
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
        "files": sorted(_open_files().values()),
    }
    emit({"event": "result", "facts": facts})


def _open_files() -> dict[int, str]:
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            found[int(link.name)] = str(link.readlink()).partition(":")[0]
    return found


def segfault(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Reads address 0 in stage `schedule`."""
    emit({"event": "stage", "stage": "schedule", "state": "start"})
    print("about to crash", flush=True)
    ctypes.string_at(0)


def abort(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """What a C++ assertion does."""
    os.abort()


def leave(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Exits without a word."""
    os._exit(payload.get("code", 0))


def hog(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Takes memory until there is none."""
    emit({"event": "stage", "stage": "build", "state": "start"})
    taken = []
    while True:
        taken.append(bytearray(16 << 20))


def hog_in_children(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Has children that each take less than the limit."""
    for _ in range(payload["count"]):
        if os.fork() == 0:
            taken = bytearray(payload["each_bytes"])
            time.sleep(600 + len(taken) % 2)
    time.sleep(600)


def crowd(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Has processes until it is refused one, or has two thousand."""
    for _ in range(2000):
        if os.fork() == 0:
            time.sleep(600)
    time.sleep(600)


def hog_shared(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Takes memory that RLIMIT_DATA does not count."""
    import mmap

    shared = mmap.mmap(-1, payload["bytes"])
    for _ in range(payload["bytes"] >> 20):
        shared.write(b"x" * (1 << 20))
    time.sleep(payload.get("seconds", 600))


def hog_in_cxx(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """What an uncaught std::bad_alloc leaves behind."""
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
    os.abort()


def big_file(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Writes a file until it is refused."""
    with (workdir / "big").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))


def fill(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Writes files of 4 MiB until it is ended: many; removed ones; in folders too deep to count, or closed to others.

    `once` is eight of them, and an end as it should be; `some` is four, and none.
    """
    how, kept = payload["how"], []
    numbers = range({"once": 8, "some": 4}.get(how, 64))
    files: Iterable[BinaryIO] = (open(f"file-{number}", "wb") for number in numbers)  # noqa: SIM115, PTH123
    if how == "closed":  # to itself as well
        files = list(files)
        workdir.chmod(0)
    for number, file in enumerate(files):
        kept.append(file)  # open
        file.write(bytes(payload.get("size", 4 << 20)))
        file.flush()
        if how == "removed":
            Path(f"file-{number}").unlink()
        elif how == "deep":
            for _ in range(40):
                Path("deeper").mkdir()
                os.chdir("deeper")
    if how != "once":
        time.sleep(600)
    emit({"event": "result"})


def sleep(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Sleeps in stage `build` with a grandchild, and one that tries to get away."""
    emit({"event": "stage", "stage": "build", "state": "start"})
    pids = [os.getpid(), subprocess.Popen(["sleep", "600"]).pid]
    pids.append(subprocess.Popen(["sleep", "601"], start_new_session=True).pid)
    emit({"event": "log", "level": "info", "message": "pids", "pids": pids})
    print("sleeping", flush=True)
    time.sleep(payload.get("seconds", 600))


def leaves_children(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Succeeds, once who listens has made a file `seen`, and leaves a daemon."""
    daemon = subprocess.Popen(["sleep", "602"], start_new_session=True)
    emit({"event": "log", "level": "info", "message": "pids", "pids": [os.getpid(), daemon.pid]})
    while not (workdir / "seen").exists():
        time.sleep(0.01)
    emit({"event": "result"})


def garble(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Writes what is no event to every socket it has, then dies in the middle of a line."""
    import socket

    lines = b'[1, 2]\n"text"\nnot json\n{"event": "log", "level": "info", "message": "on"}\n{"event": "st'
    for fd, kind in _open_files().items():
        if kind == "socket":
            with socket.socket(fileno=os.dup(fd)) as channel:
                channel.sendall(lines)
    os.kill(os.getpid(), 9)


def endless_line(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An event of over 16 MiB."""
    emit({"event": "log", "message": "x" * (20 << 20)})
    time.sleep(60)


def refuse(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """A model that cannot be taken."""
    raise relaxc.errors.UnsupportedModel("operator Frob is not supported", nodes=["a", "b"])


def bug(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """A bug of ours."""
    emit({"event": "stage", "stage": "optimize", "state": "start"})
    raise KeyError("missing")


@functools.cache
def small_library() -> bytes:
    """A shared library with one function. A light worker has made it before it forks."""
    with tempfile.TemporaryDirectory() as folder:
        out, source = Path(folder) / "library.so", 'extern "C" int answer() { return 42; }'
        subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", out], input=source, text=True, check=True)
        return out.read_bytes()


def made(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """What a compile leaves, without compiling: a packed library with weights of zeros, and build.json.

    Options say how, as shapes: `weights_mib` is the size of the weights, `beside` puts them into a file of their own,
    `sleep_s` takes longer, `record_mib` makes build.json as large.
    """
    import numpy as np

    from relaxc.service.artifact import pack
    from relaxc.service.artifact.manifest import Manifest, Requires
    from relaxc.service.request import CompileRequest
    from relaxc.service.signature import Signature, TensorSpec

    request = CompileRequest.from_dict(payload["request"])
    shapes = dict(request.options.shapes)
    emit({"event": "stage", "stage": "build", "state": "start"})
    time.sleep(int(shapes.get("sleep_s", (0,))[0]))
    library = workdir / "library.so"
    library.write_bytes(small_library())
    tensor = TensorSpec("x", "float32", ("batch", 4))
    manifest = Manifest(
        signature=Signature((tensor,), (tensor,), ()),
        target=request.target,
        requires=Requires.of(request.target, "0"),
        digests={"model": request.model.digest, "options": "b" * 64, "tuning": "c" * 64},
        versions={},
        options=request.options.to_dict(),
        command="relaxc compile MODEL",
    )
    weights = {"w": np.zeros((int(shapes.get("weights_mib", (1,))[0]), 1 << 18), np.float32)}
    files = pack(library, weights, manifest, workdir / "model.so", embed_max_bytes=0 if "beside" in shapes else 1 << 40)
    library.unlink()
    record = {"stages": {"build": 0.1}, "host": platform.node()}
    if "record_mib" in shapes:
        record["more"] = "x" * (int(shapes["record_mib"][0]) << 20)
    (workdir / "build.json").write_text(json.dumps(record))
    emit({"event": "stage", "stage": "build", "state": "done", "seconds": 0.1})
    emit({"event": "result", "files": [file.name for file in files]})


def dial(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Calls whoever listens on this machine at the port that the payload has for a seed."""
    import socket

    try:
        with socket.create_connection(("127.0.0.1", payload["seed"]), timeout=5):
            said = "connected"
    except OSError as error:
        said = type(error).__name__
    emit({"event": "result", "said": said})


def link_out(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tries to get a file of the server's into the store."""
    with contextlib.suppress(PermissionError):
        (workdir / "model.so").symlink_to("/etc/hostname")
    (workdir / "build.json").write_text("{}")
    emit({"event": "result", "files": ["model.so"]})


def path_out(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """The same, by name."""
    (workdir / "build.json").write_text("{}")
    emit({"event": "result", "files": ["../../../../../../etc/hostname"]})


def link_log(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Puts a link to the server's environment in place of its log, then fails, after `sleep_s` seconds."""
    swap_log(workdir, lambda log: log.symlink_to("/proc/self/environ"))
    _fail_later(payload, emit)


def pipe_log(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """The same with a pipe that nobody writes to."""
    swap_log(workdir, os.mkfifo)
    _fail_later(payload, emit)


def swap_log(workdir: Path, make: Callable[[Path], None]) -> None:
    """What `make` makes is the log from now on."""
    made = workdir / "in its place"
    make(made)
    made.replace(workdir / "log.txt")


def _fail_later(payload: dict[str, Any], emit: Emit) -> None:
    emit({"event": "stage", "stage": "build", "state": "start"})
    time.sleep(int(dict(payload["request"]["options"]["shapes"]).get("sleep_s", (0,))[0]))
    os._exit(1)


HALF = "half of \ud800"


def halves(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Says what is no Unicode wherever it may say something."""
    emit({"event": "stage", "stage": HALF, "state": "start"})
    emit({"event": "log", "level": HALF, "message": HALF, HALF: [HALF]})
    raise relaxc.errors.UnsupportedModel(HALF, remedy=HALF, **{HALF: HALF, "nodes": [HALF]})


def forge(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Says what is the server's to say, and what nobody says."""
    for event in ("state", "done", "job.done", "", None, 7, ["state"], {"state": 1}):
        emit({"event": event, "state": "succeeded"})
    emit({"event": "log", "level": "info", "message": "honest"})
    time.sleep(1)
    emit({"event": "result", "files": []})


def boast(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """An error of 3 MB."""
    raise relaxc.errors.UnsupportedModel("m" * 1_000_000, nodes=["n" * 1_000_000])


def stages(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """Tells the twelve events of a compile's six stages, then leaves what one makes."""
    for stage in ("import", "optimize", "schedule", "build", "verify", "pack"):
        emit({"event": "stage", "stage": stage, "state": "start"})
        emit({"event": "stage", "stage": stage, "state": "done", "seconds": 0.01})
    made(payload, workdir, emit)


_BY_SEED = (
    *(made, segfault, sleep, hog, bug, link_out, path_out, refuse, link_log, pipe_log),
    *(halves, forge, boast, stages),
)


def by_seed(payload: dict[str, Any], workdir: Path, emit: Emit) -> None:
    """One of the above; the request's seed says which."""
    _BY_SEED[payload["request"]["options"]["seed"]](payload, workdir, emit)


def seed_of(entry: str) -> int:
    """The seed that makes `by_seed` do this."""
    return [function.__name__ for function in _BY_SEED].index(entry)

"""A server without HTTP, to be killed: `python -m tests.jobs.durable_server CACHE DATABASE_URL ENTRY [SEED|tune …]`.

It submits a compile for each seed, or a tuning, tells its job's id, and serves until it is told to stop.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database.rows import LOCAL_OWNER, JobKind, JobRequest
from relaxc.service.process import flavour_zygote
from relaxc.service.request import CompileOptions
from tests.api.conftest import make_onnx
from tests.jobs.durable_entries import SEARCHES
from tests.jobs.light_worker import light_zygote

if __name__ == "__main__":
    cache, url, entry, *seeds = sys.argv[1:]
    flavour_zygote.Zygote = light_zygote  # type: ignore[assignment, misc]  # as it starts one
    with Backend(Path(cache), database_url=url, entry=entry, entries=SEARCHES) as backend:
        data = make_onnx(4)
        sha256 = hashlib.sha256(data).hexdigest()
        if seeds:
            with backend.uploads.open(LOCAL_OWNER, sha256, offset=0, total=len(data)) as part:
                part.write(data)
            backend.uploads.finish(LOCAL_OWNER, sha256)
        for seed in seeds:
            kind, number = (JobKind.TUNE, 0) if seed == "tune" else (JobKind.COMPILE, int(seed))
            asked = JobRequest(kind, model=sha256, target="x86-64-v3", options=CompileOptions(seed=number))
            print(backend.jobs.submit(LOCAL_OWNER, asked).job.id, flush=True)
        print("ready", flush=True)
        sys.stdin.read()

"""What a worker's environment has, and what it never has."""

from __future__ import annotations

import pytest

from relaxc.schedules.strict import STRICT
from relaxc.service.config import Settings
from relaxc.service.process.scrubbed import NOT_FOR_JOBS, scrubbed_environment


def test_compilers_get_what_they_need_and_no_secret() -> None:
    kept = {"PATH": "/bin", "LC_ALL": "C", "CUDA_HOME": "/cuda", "RELAXC_THREADS": "2", STRICT: "1"}
    dropped = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "RELAXC_DATABASE_URL": "postgresql://a:s@db/x",
        "RELAXC_API_KEY": "rk_s",
        "RELAXC_NEW_SECRET": "s",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=s",
        "SSH_AUTH_SOCK": "/tmp/s",
        "PGPASSWORD": "s",
        "TMPDIR": "/tmp/shared",
    }
    made = scrubbed_environment({**kept, **dropped})
    assert kept.items() <= made.items()
    assert not dropped.keys() & made.keys()


def test_asking_whether_there_is_a_gpu_does_not_start_cuda_in_a_zygote() -> None:
    """A process that is forked after CUDA started cannot use it; `import tvm_ffi` asks torch, where that is there."""
    assert scrubbed_environment({})["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


def test_the_heap_of_a_worker_keeps_its_pages_unless_it_is_told_otherwise() -> None:
    name = "MALLOC_TRIM_THRESHOLD_"
    assert int(scrubbed_environment({})[name]) > 1 << 20
    assert scrubbed_environment({name: "0"})[name] == "0"


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_that_may_hold_a_password_is_not_for_jobs(name: str) -> None:
    if any(word in name for word in ("url", "secret", "api_key", "password", "token")):
        assert name in NOT_FOR_JOBS

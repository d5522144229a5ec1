"""The image as compose.yaml runs it: its sandbox, both formats over HTTP, `kill -9`, a drain, the artifact run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from relaxc.service.client import Client
from tests import zoo
from tests.docker.composed import Served, locked_down, served
from tests.docker.conftest import ROOT, size_of, told
from tests.docker.engine import docker
from tests.postgres import PostgresMissing, running_postgres
from tests.s3 import BUCKET, CREDENTIALS, running_s3
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", params=["sqlite", "postgresql and s3"])
def server(request: pytest.FixtureRequest, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Not started yet: off loopback it wants a key first. What is kept is in its volume, or nothing of it is."""
    if request.param == "sqlite":
        with served(image) as server:
            yield server
        return
    try:
        with running_postgres() as url, psycopg.connect(url, autocommit=True) as database:
            [[socket]] = database.execute("SHOW unix_socket_directories").fetchall()
            Path(socket).chmod(0o755)  # the image's user is nobody here
            with running_s3(tmp_path_factory.mktemp("moto") / "log") as s3:
                kept = {"RELAXC_BLOBS_URL": f"s3://{BUCKET}/docker", "RELAXC_S3_ENDPOINT_URL": s3, **CREDENTIALS}
                with served(image, [f"{socket}:{socket}"], RELAXC_DATABASE_URL=url, **kept) as server:
                    yield server
    except PostgresMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def key(server: Served) -> str:
    """One that may compile."""
    return str(json.loads(server.once("relaxc", "keys", "create", "test", "--json"))["secret"])


@pytest.fixture(scope="module")
def client(server: Served, key: str) -> Iterator[Client]:
    """A client of the server, which runs now."""
    server.start()
    with Client(server.url, key=key) as client:
        yield client


def test_it_has_at_most_1300_mb(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_of(image, capsys) <= 1.3e9


def test_it_says_what_it_is_made_of(image: str) -> None:
    labels = json.loads(docker("image", "inspect", "--format={{json .Config.Labels}}", image))
    named = {name.removeprefix("org.opencontainers.image.") for name in labels}
    assert {"title", "description", "version", "revision"} <= named
    bom = json.loads(docker("run", "--rm", *locked_down(), image, "cat", "/opt/relaxc/sbom.cdx.json"))
    listed = {(each["purl"].split("/")[0], each["name"], each["version"]) for each in bom["components"]}
    debian = docker("run", "--rm", image, "dpkg-query", "--show", "--showformat=${Package} ${Version}\n")
    code = "from importlib.metadata import distributions as d; [print(each.name, each.version) for each in d()]"
    python = docker("run", "--rm", *locked_down(), image, "python3", "-c", code)
    for kind, installed in (("pkg:deb", debian), ("pkg:pypi", python)):
        assert {(kind, *line.split()) for line in installed.splitlines()} == {row for row in listed if row[0] == kind}


def test_how_soon_it_answers(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is asserted of the times, which are the machine's: bars are 3 s to the first answer."""
    with served(image) as server:
        server.once("relaxc", "keys", "create", "test", "--json")
        begun = time.monotonic()
        server.run()
        until(lambda: _answers(server), pause_s=0.02)
        answers_s = time.monotonic() - begun
        until(lambda: server.ready() is not None, pause_s=0.02)
        ready_s = time.monotonic() - begun
    told(capsys, f"{image}: first answer {answers_s:.1f} s after `docker run` (bar 3), ready after {ready_s:.1f} s")


def _answers(server: Served) -> bool:
    try:
        with urllib.request.urlopen(f"{server.url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_job_has_the_whole_sandbox(image: str) -> None:
    said = docker("run", "--rm", *locked_down(), image, "relaxc", "doctor", "--json")
    sandbox = json.loads(said)["sandbox"]
    assert sandbox["gaps"] == []
    assert (sandbox["processes"], sandbox["network"], sandbox["modes"]) == ("namespace", "namespace", "mounts")


def test_the_profile_refuses_what_nobody_needs(image: str) -> None:
    """Number 101 is ptrace: the server may not look into a process either."""
    code = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(101, 0, 0, 0, 0), ctypes.get_errno())"
    assert docker("run", "--rm", *locked_down(), image, "python3", "-c", code) == "-1 1"


def test_without_a_key_it_listens_to_nobody(image: str) -> None:
    with served(image) as server, pytest.raises(AssertionError, match="there is no key"):
        server.start()


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_both_formats_compile_and_run(server: Served, client: Client, format: str, tmp_path: Path) -> None:
    made = client.compile(zoo.export("mlp", format), tmp_path / "out.so")
    assert not isinstance(made.manifest.verification, str)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    run = ["relaxc", "run", "/artifact/out.so", "--fill=random", "--json"]
    said = docker("run", "--rm", *locked_down(), f"--volume={tmp_path}:/artifact:ro", server.image, *run)
    assert json.loads(said)["outputs"]


@pytest.mark.parametrize("format", ["onnx", "pt2"])
def test_curl_gets_the_same(server: Served, client: Client, key: str, format: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    model, out = zoo.export("mlp", format), tmp_path / "curl.so"
    asked = ["curl", "-fsS", "-H", f"Authorization: Bearer {key}", "-F", f"model=@{model}", f"{server.url}/v1/compile"]
    subprocess.run([*asked, "-o", out], check=True)
    made = client.compile(model, tmp_path / "client.so")
    assert (made.cached, out.read_bytes()) == (True, made.path.read_bytes())


def test_docker_sees_that_it_is_ready(server: Served, client: Client) -> None:
    """The check that the image says docker is to make, at the port of this one."""
    said = json.loads(docker("image", "inspect", "--format={{json .Config.Healthcheck.Test}}", server.image))
    assert said[0] == "CMD"
    assert any(":8000/" in word for word in said)
    docker("exec", server.name, *(word.replace(":8000/", f":{server.port}/") for word in said[1:]))


def test_no_job_is_lost_when_its_container_is_killed(server: Served, client: Client) -> None:
    digest = client.upload(zoo.export("resnet18", "onnx")).digest
    jobs = [client.submit("compile", model=digest, options={"seed": seed}) for seed in range(3)]
    server.kill()
    server.start()
    assert [client.wait(job.id, timeout_s=900).state for job in jobs] == ["succeeded"] * 3


def test_what_is_kept_elsewhere_outlives_the_volume(server: Served, client: Client, tmp_path: Path) -> None:
    if not server.keeps_elsewhere:
        pytest.skip("on SQLite the volume is all that there is")
    made = client.compile(zoo.export("mlp", "onnx"), tmp_path / "out.so")
    digest = client.upload(zoo.export("resnet18", "onnx")).digest
    job = client.submit("compile", model=digest, options={"seed": 7})
    server.kill()
    server.lose_volume()
    server.start()
    assert client.wait(job.id, timeout_s=900).state == "succeeded"
    again = client.compile(zoo.export("mlp", "onnx"), tmp_path / "again.so")
    assert (again.cached, (tmp_path / "again.so").read_bytes()) == (True, made.path.read_bytes())


def test_docker_stop_drains(server: Served, client: Client) -> None:
    digest = client.upload(zoo.export("resnet18", "onnx")).digest
    job = client.submit("compile", model=digest, options={"seed": 9})
    assert server.stop() == 0
    server.start()
    assert client.wait(job.id, timeout_s=900).state == "succeeded"


def test_a_backup_of_the_volume_is_restored(server: Served, client: Client, tmp_path: Path) -> None:
    """By the commands of docs/docker.md, while it runs; the server is then given the new volume."""
    if server.keeps_elsewhere:
        pytest.skip("the volume is a cache")
    made = client.compile(zoo.export("mlp", "onnx"), tmp_path / "out.so")
    text = (ROOT / "docs/docker.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Backup, upgrade.*?^## ", text, re.M | re.S)
    server.backed_up(tmp_path, re.findall(r"^```text\n(.*?)^```", section, re.M | re.S))
    server.kill()
    server.start()
    again = client.compile(zoo.export("mlp", "onnx"), tmp_path / "again.so")
    assert (again.cached, (tmp_path / "again.so").read_bytes()) == (True, made.path.read_bytes())

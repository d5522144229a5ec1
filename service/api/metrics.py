"""What /metrics tells: requests, jobs, stages, caches, workers. A label has few values, none that a sender chooses."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relaxc.service.errors import ServiceError
from relaxc.service.jobs.backend import Backend
from relaxc.service.jobs.database import jobs
from relaxc.service.jobs.database.rows import JobKind, JobRow
from relaxc.service.jobs.job import State
from relaxc.service.jobs.objects.allowance import Watched
from relaxc.service.jobs.queue.retention import METRIC
from relaxc.service.jobs.scrub import METRIC as SCRUBBED
from relaxc.service.jobs.workers.fleet import Worker

__all__ = ["Metrics"]

_REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_STAGE_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
_STAGES = frozenset(
    ["import", "optimize", "schedule", "build", "verify", "pack", "tune", "measure", "compare", "bench"]
)
OTHER = "other"
_FOREVER_S = 1e9
_ENDS = frozenset([State.SUCCEEDED, State.FAILED, State.CANCELLED])


class Metrics:
    """The numbers of one application, in a registry of its own. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self.requests = Histogram(
            "relaxc_http_request_seconds",
            "Time from a request's header to the end of its answer, by route.",
            ("method", "route", "status"),
            buckets=_REQUEST_S,
            registry=self._registry,
        )
        self.received = self._counter("relaxc_http_received_bytes", "Bytes of requests' bodies.")
        self.sent = self._counter("relaxc_http_sent_bytes", "Bytes of answers' bodies.")
        self._stages = Histogram(
            "relaxc_stage_seconds",
            "Time of a job's stage.",
            ("kind", "stage"),
            buckets=_STAGE_S,
            registry=self._registry,
        )
        self._ended = self._counter("relaxc_jobs_ended", "Jobs that ended on this server.", "kind", "state")
        self._cache = self._counter("relaxc_cache_requests", "How submitted jobs were answered.", "origin")
        self.database_errors = self._counter("relaxc_database_errors", "Statements that the database failed.")

    def watch(self, backend: Backend) -> None:
        """Add what is asked of the backend when /metrics is, and counts its database's failures."""
        self._registry.register(_OfBackend(backend))
        backend.database.on_error(self.database_errors.inc)

    def watch_job(self, job: JobRow, data: dict[str, Any]) -> None:
        """Count an event of a job that runs here: ends of stages, whose names are the child's word, and its own end."""
        seconds = data.get("seconds")
        if data.get("event") == "stage" and isinstance(seconds, int | float) and 0 <= seconds < _FOREVER_S:
            stage = str(data.get("stage"))
            self._stages.labels(job.kind.value, stage if stage in _STAGES else OTHER).observe(seconds)
        elif data.get("event") == "state" and data.get("state") in _ENDS:
            self._ended.labels(job.kind.value, data["state"]).inc()

    def submitted(self, origin: str) -> None:
        """Count a job that was asked for and answered by `hit`, `miss`, `joined` or `repeated`."""
        self._cache.labels(origin).inc()

    def text(self) -> bytes:
        """Return all of it, in Prometheus's text format 0.0.4."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, labels, registry=self._registry)


class _OfBackend(Collector):
    """Read when asked: the queue, what runs, the store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: the queue is not read before somebody asks."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers now; without the queue's where the database does not answer."""
        children = GaugeMetricFamily("relaxc_children", "Tasks that run in child processes of this server.")
        children.add_metric([], self._backend.pool.running)
        yield children
        workers = GaugeMetricFamily(
            "relaxc_workers_ready", "Warm workers, by what they have imported.", labels=["flavour"]
        )
        for flavour in self._backend.pool.ready():
            workers.add_metric([flavour.value], 1)
        yield workers
        disks = self._backend.disks
        for name, help, size in (
            ("relaxc_disk_free_bytes", "Free space of the disk that has the least.", disks.free_bytes()),
            ("relaxc_disk_reserve_bytes", "Free space under which nothing new is taken.", disks.reserve_bytes),
        ):
            disk = GaugeMetricFamily(name, help)
            disk.add_metric([], size)
            yield disk
        yield from self._retention()
        scrubbed = CounterMetricFamily(
            SCRUBBED, "What was hashed anew to find rotten bytes (docs/retention.md).", labels=["kind", "state"]
        )
        for labels, count in self._backend.scrub.counts.items():
            scrubbed.add_metric(labels, count)
        yield scrubbed
        up = GaugeMetricFamily("relaxc_database_up", "Whether the database answers.")
        try:
            depth, sizes, watched = self._depth(), self._backend.database.sizes(), self._backend.allowance.watched()
            processes, waiting = self._backend.fleet.every(), self._backend.placement.waiting()
        except ServiceError:
            up.add_metric([], 0)
        else:
            up.add_metric([], 1)
            queue = GaugeMetricFamily(
                "relaxc_jobs", "Jobs of all servers of the database that have not ended.", labels=["kind", "state"]
            )
            for (kind, state), count in depth.items():
                queue.add_metric([kind.value, state.value], count)
            yield queue
            whole = GaugeMetricFamily(
                "relaxc_database_bytes", "Size of the database; `free` is what SQLite will use again.", labels=["part"]
            )
            for part, value in sizes.items():
                whole.add_metric([part], value)
            yield whole
            yield from _quotas(watched)
            yield from _fleet(processes, waiting)
        yield up

    def _retention(self) -> Iterator[Metric]:
        sweep = self._backend.retention
        removed = CounterMetricFamily(METRIC, "What retention deleted (docs/retention.md).", labels=["place", "name"])
        for (place, name), count in sweep.removed.counts().items():
            removed.add_metric([place.value, name], count)
        yield removed
        if sweep.finished is not None:
            last = GaugeMetricFamily(
                "relaxc_retention_finished_seconds", "Unix time of the last sweep that came to its end."
            )
            last.add_metric([], sweep.finished)
            yield last

    def _depth(self) -> dict[tuple[JobKind, State], int]:
        with self._backend.database.read() as connection:
            return jobs.depth(connection)


def _fleet(workers: Iterable[Worker], waiting: Mapping[tuple[str, bool], int]) -> Iterator[Metric]:
    """Machines, and what jobs wait for: a level or an architecture."""
    help = "Servers and workers of the database, by what their machines are."
    there = GaugeMetricFamily("relaxc_workers", help, labels=["role", "kind", "state"])
    counts = Counts((each.role, each.machine.kind if each.machine else OTHER, each.state) for each in workers)
    for labels, count in counts.items():
        there.add_metric(labels, count)
    yield there
    help = "Jobs that wait, by what they need of a machine; `taker` no: no live worker has it."
    queued = GaugeMetricFamily("relaxc_jobs_waiting", help, labels=["needs", "taker"])
    for (needs, placed), count in waiting.items():
        queued.add_metric([needs, "yes" if placed else "no"], count)
    yield queued


def _quotas(watched: Watched) -> Iterator[Metric]:
    """Nobody is named: who may read the metrics is not told what another owner has."""
    for name, help, value in (
        ("relaxc_uploads", "Uploads that are on their way, of all owners; at most a minute old.", watched.uploads),
        ("relaxc_upload_bytes", "Room that quotas keep for them.", watched.upload_bytes),
    ):
        gauge = GaugeMetricFamily(name, help)
        gauge.add_metric([], value)
        yield gauge
    help = "Owners that have at least this share of what they may have; at most a minute old."
    owners = GaugeMetricFamily("relaxc_quota_owners", help, labels=["quota", "share"])
    for (quota, share), count in watched.owners_at.items():
        owners.add_metric([quota, f"{share:g}"], count)
    yield owners

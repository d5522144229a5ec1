"""OpenTelemetry traces: a span for each request, each job and each stage of it, where an endpoint for them is set.

OTEL_EXPORTER_OTLP_ENDPOINT and the other OTEL_ variables are OpenTelemetry's own. Without an endpoint nothing of it is
imported.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from fastapi.telemetry import TelemetryConfig

from relaxc.service.jobs.database.rows import JobRow

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["Traces", "of_requests", "open_traces"]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_NOT_TRACED = ("/healthz", "/readyz", "/metrics")
_NAME_CHARS = 64


class Traces:
    """The spans of one server's jobs. Methods may be called from any thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("relaxc")
        self._jobs: dict[str, Span] = {}
        self._stages: dict[str, Span] = {}
        self._lock = threading.Lock()

    def watch(self, job: JobRow, data: dict[str, Any]) -> None:
        """Take an event of a job: `state` opens and closes its span, `stage` those below it."""
        with self._lock:
            if data.get("event") == "state":
                self._state(job, data)
            elif data.get("event") == "stage" and job.id in self._jobs:
                self._end_stage(job.id)
                if data.get("state") == "start":
                    name = str(data.get("stage"))[:_NAME_CHARS]
                    self._stages[job.id] = self._tracer.start_span(f"stage {name}", self._below(job.id))

    def close(self) -> None:
        """Send what has not been sent."""
        self.provider.shutdown()

    def _state(self, job: JobRow, data: dict[str, Any]) -> None:
        from opentelemetry.trace import Status, StatusCode

        if data["state"] == "running":
            facts = {"job.id": job.id, "job.kind": job.kind.value, "job.owner": job.owner, "job.attempt": job.attempts}
            self._jobs[job.id] = self._tracer.start_span(f"job {job.kind.value}", attributes=facts)
            return
        self._end_stage(job.id)
        span = self._jobs.pop(job.id, None)
        if span is not None:
            code = (data.get("error") or {}).get("code")
            if code:
                span.set_attribute("error.type", code)
                span.set_status(Status(StatusCode.ERROR))
            span.set_attribute("job.state", data["state"])
            span.end(time.time_ns())

    def _end_stage(self, job: str) -> None:
        span = self._stages.pop(job, None)
        if span is not None:
            span.end()

    def _below(self, job: str) -> Any:
        from opentelemetry.trace import set_span_in_context

        return set_span_in_context(self._jobs[job])


def of_requests(traces: Traces | None) -> TelemetryConfig:
    """Return what FastAPI is to trace by itself: each request, where there is somewhere to send it."""
    config: TelemetryConfig = {"tracing": traces is not None, "metrics": False, "logs": False, "operation_spans": False}
    if traces is not None:
        config["tracer_provider"] = traces.provider
        config["exclude"] = lambda scope: scope.get("path") in _NOT_TRACED
    return config


def open_traces() -> Traces | None:
    """Send traces to the endpoint that the environment names; None where it names none."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "relaxc")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)

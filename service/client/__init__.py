"""A client of the service, sync and async: `pip install 'relaxc[client]'`.

with Client("http://localhost:8000", key=secret) as client:
    made = client.compile("model.onnx", "model.so")
"""

from __future__ import annotations

from relaxc.service.client.asynchronous import AsyncClient
from relaxc.service.client.job import Event, Job, JobPage, Model
from relaxc.service.client.retry import Patience
from relaxc.service.client.sync import Client
from relaxc.service.client.tune import Tuned

__all__ = ["AsyncClient", "Client", "Event", "Job", "JobPage", "Model", "Patience", "Tuned"]

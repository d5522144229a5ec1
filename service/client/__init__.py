"""A client of the service, sync and async: `pip install 'relaxc[client]'`.

with Client("http://localhost:8000", key=secret) as client:
    made = client.compile("model.onnx", "model.so")
"""

from __future__ import annotations

from service.client.asynchronous import AsyncClient
from service.client.job import Event, Job, JobPage, Model
from service.client.retry import Patience
from service.client.sync import Client
from service.client.tune import Tuned

__all__ = ["AsyncClient", "Client", "Event", "Job", "JobPage", "Model", "Patience", "Tuned"]

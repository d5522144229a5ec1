"""Lowering: a target from text, a schedule for every PrimFunc, then machine code in a shared library.

Importing this package imports no tvm: the command line asks it for targets only.
"""

from __future__ import annotations

from relaxc.service.lowering.build import build
from relaxc.service.lowering.peak import peak_of
from relaxc.service.lowering.planner import RecordPlanner, planner_for
from relaxc.service.lowering.schedule import Scheduled, schedule
from relaxc.service.lowering.untemplated import untemplated

__all__ = ["RecordPlanner", "Scheduled", "build", "peak_of", "planner_for", "schedule", "untemplated"]

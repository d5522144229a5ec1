"""Bytes by name and digest: a local folder, and where it is asked for an S3 bucket behind it."""

from __future__ import annotations

"""Tests of service.artifact."""

"""Tests of relaxc.service.artifact."""

"""Tests of service.compiling."""

"""Tests of service.runtime."""

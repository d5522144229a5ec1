"""Tests of relaxc.service.runtime."""

"""Tests of service/passes."""

"""Tests of lowering."""

"""Tests of relaxc.service.compiling."""

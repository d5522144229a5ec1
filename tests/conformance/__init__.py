"""Conformance suites of other projects, run through the whole import and a plain build."""

"""Tests of the client: against real servers, some behind a wire that breaks."""

"""Drills: the service under what can go wrong at any moment, for many rounds."""

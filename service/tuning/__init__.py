"""Tuning: tasks out of models, search, measurement, and records of what won."""

"""Programs that show relaxc at work."""

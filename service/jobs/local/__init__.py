"""Compiles and tunes for one process: the command line, or Python code."""

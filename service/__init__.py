"""The service: what compiles, tunes and runs models, and the ways in."""

"""Single operators of real networks against what this machine reaches at most: `python -m benchmarks.kernels`."""

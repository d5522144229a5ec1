"""Weights of 4 and 8 bits beside the memory, and decoding steps beside float32: `python -m benchmarks.weights`."""

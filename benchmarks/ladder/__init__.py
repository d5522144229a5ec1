"""A product and a convolution, one step of scheduling at a time, up to our templates: `python -m benchmarks.ladder`."""

"""Random kernels for a GPU against fp64 references: drawn, compiled, checked and counted; see `run`."""

"""Kernels for a GPU against cuBLAS: made anywhere, checked and measured where the GPU is; see `__main__`."""

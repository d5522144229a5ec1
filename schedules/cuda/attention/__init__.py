"""Attention on CUDA: what a PrimFunc computes, and the kernels for it."""

"""Beside the stages of a compile: what calibrates, what an artifact is compared with, which kernels have records."""

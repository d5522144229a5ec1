"""Records: what tunings found, as values and in files; which of them a compile uses, and which kernels have one."""

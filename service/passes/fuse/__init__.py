"""One kernel for several operators."""

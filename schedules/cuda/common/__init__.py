"""What the CUDA templates share: instructions of sm_90a, expressions as text, text in a PrimFunc."""

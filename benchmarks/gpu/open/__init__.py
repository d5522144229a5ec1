"""Networks that nobody listed: drawn by a seed from a grammar of blocks, timed beside torch.compile."""

"""`torch.compile(m, backend="relaxc")`."""

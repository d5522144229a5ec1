"""What the service bears on this machine, each figure with its bar beside it."""

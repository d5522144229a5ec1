"""What a child process gives up before it reads a byte of a model."""

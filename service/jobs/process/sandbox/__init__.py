"""What a job's process gives up before it reads a byte of a model."""

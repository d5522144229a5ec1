"""A call in a child process: warm zygotes, a fork for each task under limits, and how it ended."""

"""Who asked to be told of a job's end is told."""

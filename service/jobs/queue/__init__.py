"""The server's jobs: rows of a database, chosen, run, told about, and cleared away."""

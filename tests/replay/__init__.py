"""Every kernel of the zoo at two commits, and which of them changed: `python -m tests.replay BASE [HEAD]`."""

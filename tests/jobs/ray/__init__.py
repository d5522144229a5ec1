"""Jobs on a Ray cluster of several nodes, all on this machine."""

"""MetaSchedule's generic space, for what no template takes: its traces, and a check of them."""

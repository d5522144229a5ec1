"""Random graphs, compiled and compared with two references: `python -m tests.fuzz`; docs/fuzzing.md says how."""

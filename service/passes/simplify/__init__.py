"""Passes that compute less: constants folded, equal calls merged, shapes and algebra simplified."""

"""Norms and softmaxes of rows."""

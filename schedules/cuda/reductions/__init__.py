"""Reductions over any axes, and what is made of them for each element behind."""

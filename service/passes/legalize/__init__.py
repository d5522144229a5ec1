"""Operators become calls of PrimFuncs."""

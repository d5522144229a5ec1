"""Operators in chosen layouts as tensor expressions, in the blocks that the templates read."""

"""Norms of groups of channels of images in NHWC."""

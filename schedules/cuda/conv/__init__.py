"""Convolutions of images in NHWC."""

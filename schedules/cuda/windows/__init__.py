"""Depthwise convolutions and pooling of images in NHWC."""

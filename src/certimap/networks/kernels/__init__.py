"""Compiled kernels of the network algorithms: arrays in, arrays out."""

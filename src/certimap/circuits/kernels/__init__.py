"""Compiled code of circuits: arrays in, arrays out."""

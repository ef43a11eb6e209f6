"""Compiled code that several rooms share, and nothing else."""

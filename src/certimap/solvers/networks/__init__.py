"""Solvers for discrete networks of any width."""

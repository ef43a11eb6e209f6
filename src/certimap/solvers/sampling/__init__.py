"""Solvers based on independent draws."""

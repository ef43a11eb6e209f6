"""Solvers that live on independent draws."""

"""Solvers that propose points without proof."""

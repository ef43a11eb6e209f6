"""Compiled bounds on mixtures of Gaussians."""

"""Solvers that propose a point and prove nothing by themselves."""

"""Conformance cases for posteriors and solvers, which `certimap.testing` offers to authors of their own."""

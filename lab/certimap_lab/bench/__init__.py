"""Benchmarks: what is run, the records of it, and the tables and figures made of the records."""

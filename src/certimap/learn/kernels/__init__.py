"""Compiled code of the learners."""

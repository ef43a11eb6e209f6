"""Compiled code of trees of regions."""

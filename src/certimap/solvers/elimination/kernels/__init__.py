"""Compiled code of set elimination."""

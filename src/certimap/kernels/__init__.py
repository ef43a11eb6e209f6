"""Compiled code shared by several packages."""

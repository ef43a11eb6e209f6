"""Relaxations of networks: variables split into copies until the tables fit, and bounds from the trees that are left."""

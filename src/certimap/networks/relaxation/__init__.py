"""Relaxations of networks: variables split into copies until tables fit, and bounds from the trees left."""

"""Set elimination: dynamic programming on sets of vectors along a tree of regions."""

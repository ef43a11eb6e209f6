"""The most probable cell of a partition of real variables."""

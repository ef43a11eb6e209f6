"""Branch and bound on boxes."""

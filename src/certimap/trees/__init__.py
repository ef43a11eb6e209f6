"""Trees of regions: tables, passes, draws, and the posterior that answers from them."""

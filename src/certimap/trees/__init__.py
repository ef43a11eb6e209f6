"""Trees of regions: tables, passes, draws, and their posterior."""

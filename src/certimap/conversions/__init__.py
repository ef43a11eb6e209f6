"""From one representation to another, and the choice which of them answers a query."""

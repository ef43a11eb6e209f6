"""The public entry points: queries, batches, shared queries, and questions other than MAP."""

"""The doors: queries, rows of queries, shared queries, and the questions beside the best answer."""

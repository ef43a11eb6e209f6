"""Plain data and control: domains, boxes, queries, results, what a posterior may offer, limits of a run."""

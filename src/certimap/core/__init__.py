"""Plain data and control: domains, boxes, queries, results, posterior protocols, run limits."""

"""What measures and attacks certimap: benchmarks, hostile models, trials by the thousand, proofs under attack."""

"""Programs that are measured in a process of their own; `benchmarks.fresh` runs them."""

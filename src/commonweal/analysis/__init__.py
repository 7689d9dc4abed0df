"""Numbers about runs and data: comparisons, regret, models between models, who holds what."""

"""Products with weights: dense, of few rows, of experts; and the sums of their parts."""

"""Plain data and pure functions that all packages share: requests, step plans, events, results. No tensors."""

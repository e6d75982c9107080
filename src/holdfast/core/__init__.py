"""Plain data and pure functions for all packages: requests, step plans, events, results."""

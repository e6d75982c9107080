"""Plain data and pure functions: what a request is, what a pass is, what a verdict says. Knows no tensor."""

"""What the server tells of itself: metrics, logs and traces."""

"""What happens before the first request: checks without torch, loading, kernels, memory."""

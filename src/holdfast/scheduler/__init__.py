"""The scheduler: admission, batching, verification, rollback, preemption. Plain data, no tensors."""

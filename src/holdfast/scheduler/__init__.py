"""The scheduler: admission, batching, verification, rollback, preemption. No tensors."""

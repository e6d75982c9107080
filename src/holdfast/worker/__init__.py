"""From a plan to tensors and back: the KV store, the batch, the sampler, the runner. Keeps no request state."""

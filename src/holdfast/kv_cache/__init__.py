"""Pages of the KV cache: the pool, page tables, the prefix cache. Bookkeeping without tensors."""

"""Which page belongs to whom: the pool, the prefix index, a sequence's page table. Knows no tensor."""

"""The compiled path: C kernels built for this CPU at first use, whose bits depend on the row alone.

An element of a result is computed by one fixed order of operations in every kernel, whatever the number of
rows, the tile and the thread; so every shape gives the reference's bits, and `canonical` makes no difference.
"""

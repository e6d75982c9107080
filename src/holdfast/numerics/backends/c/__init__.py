"""The C backend: C kernels built for this CPU at first use.

Every kernel computes an element of its result by one fixed order of operations, for any number of
rows, tile and thread. So every shape has the canonical bits, and `canonical` makes no difference.
"""

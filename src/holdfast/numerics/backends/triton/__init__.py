"""Kernels in Triton, and the backend made of them and of the library's products. Only this package imports triton."""

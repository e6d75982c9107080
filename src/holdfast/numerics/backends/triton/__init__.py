"""The Triton backend and its kernels. Only this package imports triton."""

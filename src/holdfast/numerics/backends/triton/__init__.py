"""The Triton backend and its kernels. Only this package imports triton."""


def hash_compiler() -> None:
    """Hash Triton's own files. The hash is in the key of every compiled kernel, and Triton keeps it."""
    from triton.runtime.cache import triton_key

    triton_key()

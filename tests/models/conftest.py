import support.arrays  # noqa: F401

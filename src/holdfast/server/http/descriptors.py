"""File descriptors: every connection takes one, and the usual limit of a shell is a quarter of what we accept."""

import resource


def raise_descriptor_limit() -> int:
    """Raise the process's soft limit to the hard one; returns how many descriptors it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
        return soft
    return hard

"""Code versions: which code decides bits, and which version of it is installed.

components          the files that decide bits, in a few components
canonical_source    a source without what cannot decide a bit: comments, docstrings, formatting
versions            `code_version`: a component's version, with a digest if the code was modified
recorded.json       the version and the digest of every component

`python -m holdfast.numerics.code_versions` shows them and records new ones.
"""

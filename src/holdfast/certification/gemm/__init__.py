"""The recipes of a model's GEMMs on a GPU, chosen on the device before weights are loaded.

Split-K decides bits: it is part of the fingerprint, and is never chosen by time. Split-N decides
none: it is chosen by time, and checked to leave the bits as they are.
"""

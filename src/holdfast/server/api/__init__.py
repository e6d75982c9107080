"""The HTTP API: one module for each group of routes, and what they share.

`schema` has the request and response models.
"""

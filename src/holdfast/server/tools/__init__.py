"""Tool calls: the request's tools, the formats in which models write calls, grammars that force
calls, and parsers.
"""

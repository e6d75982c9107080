"""Anthropic's Messages API: `requests` -> `translation` -> the chat route's engine path ->
`objects`.
"""
